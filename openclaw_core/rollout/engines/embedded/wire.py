"""SGLang's request and response bodies, as seen on a server of version 0.5.21."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, Field

from openclaw_core.rollout.engines.embedded.model import EngineModel
from openclaw_core.rollout.engines.embedded.params import BadRequestError, SamplingParams, parse_sampling_params
from openclaw_core.rollout.engines.embedded.request import Pairs, Request
from openclaw_core.rollout.engines.embedded.stopping import visible_text


class GenerateBody(BaseModel):
    """Fields of /generate that this engine reads; others are passed over, as SGLang does. Lists of lists are a batch."""

    input_ids: list[int] | list[list[int]] | None = None
    text: str | list[str] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int] | list[list[int]] | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False


class UpdateBody(BaseModel):
    model_path: str
    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False


class AbortBody(BaseModel):
    rid: str = ""
    abort_all: bool = False


class PauseBody(BaseModel):
    mode: str = Field("abort", pattern="^(abort|in_place|retract)$")


def parse_requests(
    body: GenerateBody, model: EngineModel, context_length: int, seeds: random.Random, finish: Callable[[Request], None]
) -> tuple[list[Request], bool]:
    """The requests of one body, and whether the answer is a list. BadRequestError with the text that SGLang would give."""
    if body.stream:
        raise BadRequestError("stream=true is not supported by the embedded engine.")
    prompts, listed = _prompts(body, model)
    count = len(prompts)
    sampling = _each(body.sampling_params, count, lambda value: isinstance(value, list))
    rids = _each(body.rid, count, lambda value: isinstance(value, list))
    wanted = _each(body.return_logprob, count, lambda value: isinstance(value, list))
    starts = _each(body.logprob_start_len, count, lambda value: isinstance(value, list))
    tops = _each(body.top_logprobs_num, count, lambda value: isinstance(value, list))
    watched = _each(body.token_ids_logprob, count, lambda value: bool(value) and isinstance(value[0], list))
    requests: list[Request] = []
    for row, ids in enumerate(prompts):
        params = parse_sampling_params(sampling[row])
        max_new_tokens = _fit(ids, params, model, context_length)
        return_logprob = bool(wanted[row])
        start = starts[row]
        if start is not None and start > len(ids):
            raise BadRequestError(f"logprob_start_len={start} is higher than the number of input tokens ({len(ids)}).")
        watched_ids = tuple(watched[row] or ()) if return_logprob else ()
        _check_ids(watched_ids, "token_ids_logprob", model)
        for copy in range(params.n):
            requests.append(
                Request(
                    rid=rids[row] if rids[row] and params.n == 1 else uuid.uuid4().hex,
                    input_ids=ids,
                    params=params,
                    max_new_tokens=max_new_tokens,
                    finish=finish,
                    seed=params.sampling_seed + copy if params.sampling_seed is not None else seeds.getrandbits(64),
                    return_logprob=return_logprob,
                    top=tops[row] or 0 if return_logprob else 0,
                    watched_ids=watched_ids,
                    input_start=start if return_logprob and start is not None and start >= 0 else None,
                )
            )
    return requests, listed or len(requests) > 1


def response(request: Request, model: EngineModel, with_text: bool) -> dict[str, Any]:
    """SGLang's answer for one finished request."""

    def entry(logprob: float | None, token: int) -> list[Any]:
        return [logprob, token, model.decode([token], False) if with_text else None]

    def rows(pairs: Sequence[Pairs | None]) -> list[Any]:
        return [None if row is None else [entry(logprob, token) for logprob, token in row] for row in pairs]

    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": request.reason,
        "prompt_tokens": len(request.input_ids),
        "weight_version": request.version,
        "num_retractions": request.retractions,
    }
    if request.return_logprob:
        inputs = request.input_ids[request.input_start :] if request.input_start is not None else []
        meta["input_token_logprobs"] = [entry(*pair) for pair in zip(request.input_logprobs, inputs, strict=False)]
        meta["output_token_logprobs"] = [entry(*pair) for pair in zip(request.output_logprobs, request.output_ids, strict=True)]
        meta["output_token_logprobs_length"] = len(request.output_ids)
        if request.top:
            meta["input_top_logprobs"] = rows(request.input_top)
            meta["output_top_logprobs"] = rows(request.output_top)
        if request.watched_ids:
            meta["input_token_ids_logprobs"] = rows(request.input_watched)
            meta["output_token_ids_logprobs"] = rows(request.output_watched)
    meta.update(
        completion_tokens=len(request.output_ids),
        cached_tokens=0,
        weight_versions=request.spans(),
        e2e_latency=time.monotonic() - request.created,
    )
    return {"text": visible_text(request, model), "output_ids": request.output_ids, "meta_info": meta}


def _prompts(body: GenerateBody, model: EngineModel) -> tuple[list[list[int]], bool]:
    if (body.text is None) == (body.input_ids is None):
        raise BadRequestError("Either text or input_ids should be provided, and not both.")
    if body.text is not None:
        if model.tokenizer is None:
            raise BadRequestError("text needs a tokenizer and the model folder has none; send input_ids.")
        texts = [body.text] if isinstance(body.text, str) else body.text
        # verbose: the tokenizer would warn of its own model_max_length, where the engine's context length decides.
        prompts = [list(model.tokenizer(text, verbose=False)["input_ids"]) for text in texts]
        listed = not isinstance(body.text, str)
    else:
        listed = bool(body.input_ids) and isinstance(body.input_ids[0], list)  # type: ignore[index]
        prompts = body.input_ids if listed else [body.input_ids]  # type: ignore[assignment, list-item]
    for ids in prompts:
        if not ids:
            raise BadRequestError("input_ids cannot be empty.")
        _check_ids(ids, "input_ids", model)
    return prompts, listed


def _check_ids(ids: Sequence[int], name: str, model: EngineModel) -> None:
    if ids and (min(ids) < 0 or max(ids) >= model.real_vocab):
        wrong = next(i for i in ids if not 0 <= i < model.real_vocab)
        raise BadRequestError(f"{name} holds {wrong}; ids must be in [0, {model.real_vocab - 1}].")


def _fit(ids: list[int], params: SamplingParams, model: EngineModel, context_length: int) -> int:
    """The most new tokens of a request that fits the context, in SGLang's words when it doesn't."""
    if len(ids) >= context_length:
        raise BadRequestError(
            f"The input ({len(ids)} tokens) is longer than the model's context length ({context_length} tokens)."
        )
    if params.max_new_tokens is None:
        return context_length - len(ids)
    if len(ids) + params.max_new_tokens > context_length:
        raise BadRequestError(
            f"Requested token count exceeds the model's maximum context length of {context_length} tokens. "
            f"You requested a total of {len(ids) + params.max_new_tokens} tokens: {len(ids)} tokens from the input messages and "
            f"{params.max_new_tokens} tokens for the completion. Please reduce the number of tokens in the input messages or "
            "the completion to fit within the limit."
        )
    return params.max_new_tokens


def _each(value: Any, count: int, per_row: Callable[[Any], bool]) -> list[Any]:
    """One value per prompt: given as a list of that length, or one for all."""
    if value is None or not per_row(value):
        return [value] * count
    if len(value) != count:
        raise BadRequestError(f"A list of {len(value)} values was given for {count} prompts.")
    return list(value)
