"""One client for every engine that speaks SGLang's HTTP bodies: SGLang itself and the embedded engine."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import httpx

from openclaw_core.rollout.engines.errors import EngineError, EngineTimeout, EngineUnreachable, from_response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from openclaw_core.types import TopK

FinishReason = Literal["stop", "length", "abort"]
PauseMode = Literal["abort", "in_place", "retract"]

_CONNECT_S = 5.0
# Servers close idle connections after 5 s; a client that drops them earlier never writes into a closing one.
_KEEPALIVE_S = 2.0


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Response ids start..end (half-open) were sampled by this weight version."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine sampled: R response ids with their R log-probs, stop token included.

    logprobs are of the temperature-scaled distribution before top-p, top-k and min-p. top is [R, K] where asked for.
    weight_version is the one at the finish; versions tells them apart where they changed on the way.
    """

    rid: str
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    matched: int | str | None
    weight_version: int
    versions: tuple[VersionSpan, ...]
    prompt_tokens: int
    text: str
    top: TopK | None = None
    abort_message: str | None = None


class EngineClient:
    """Talks to one engine. Belongs to the event loop it is first used in; close it with aclose() or `async with`.

    timeout_s bounds one generation; control_timeout_s every other call. All methods raise EngineUnreachable,
    EngineTimeout, EngineBusy (429, 503), PromptTooLong (400 with numbers) or EngineError with status and text.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = 600.0,
        control_timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeout_s = timeout_s
        self.control_timeout_s = control_timeout_s
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=_KEEPALIVE_S),
            trust_env=False,
            transport=transport,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        *,
        top_logprobs_num: int = 0,
        rid: str | None = None,
        timeout_s: float | None = None,
    ) -> Generation:
        """Samples one reply. finish_reason 'abort' comes with the ids sampled until then and raises nothing."""
        body: dict[str, Any] = {
            "input_ids": list(input_ids),
            "sampling_params": dict(sampling_params),
            "return_logprob": True,
            "top_logprobs_num": top_logprobs_num,
            "return_text_in_logprobs": False,
            "stream": False,
        }
        if rid is not None:
            body["rid"] = rid
        reply = await self._json("POST", "/generate", body, timeout_s=timeout_s or self.timeout_s)
        return parse_generation(reply, top_logprobs_num)

    async def score(self, input_ids: Sequence[int], *, start: int = 0, timeout_s: float | None = None) -> tuple[float, ...]:
        """Log-probs of input_ids[start + 1:] given what precedes each, not scaled by any temperature."""
        body = {
            "input_ids": list(input_ids),
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start,
            "return_text_in_logprobs": False,
        }
        reply = await self._json("POST", "/generate", body, timeout_s=timeout_s or self.timeout_s)
        try:
            scores = tuple(_finite(entry[0]) for entry in reply["meta_info"]["input_token_logprobs"][1:])
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise EngineError(f"Engine answer can't be read ({type(error).__name__}: {error}).", status=200) from error
        if len(scores) != len(input_ids) - start - 1:
            raise EngineError(f"Engine scored {len(scores)} ids where {len(input_ids) - start - 1} were asked for.", status=200)
        return scores

    async def ready(self, timeout_s: float = 10.0) -> bool:
        """Whether the engine generates: one real token within timeout_s. A paused or hung engine isn't ready."""
        try:
            reply = await self.generate([0], {"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True}, timeout_s=timeout_s)
        except EngineError:
            return False
        return len(reply.response_ids) == 1

    async def health(self, timeout_s: float | None = None) -> bool:
        """Whether the HTTP server answers /health with 200. Says nothing of readiness; a paused SGLang answers 503."""
        try:
            await self._text("GET", "/health", None, timeout_s=timeout_s)
        except EngineError:
            return False
        return True

    async def model_info(self) -> dict[str, Any]:
        """Path, type and weight version of the model. Answers while paused, so it is the liveness check."""
        return await self._json("GET", "/model_info", None)

    async def server_info(self) -> dict[str, Any]:
        return await self._json("GET", "/server_info", None)

    async def weight_version(self) -> int:
        return parse_version((await self.model_info()).get("weight_version"))

    async def update_weights_from_disk(
        self, path: str, version: int, *, flush_cache: bool = False, timeout_s: float = 600.0
    ) -> None:
        """Loads the weights of a HF folder (as the engine's host sees it). Raises EngineError when they don't fit.

        Keep flush_cache false while paused in place: SGLang dies of it.
        """
        body = {"model_path": str(path), "weight_version": str(version), "flush_cache": flush_cache}
        reply = await self._json("POST", "/update_weights_from_disk", body, timeout_s=timeout_s)
        if reply.get("success") is not True:
            text = str(reply.get("message", reply))
            raise EngineError(f"{self.base_url} refused the weights of {path}: {text}", status=200, text=text)

    async def pause(self, mode: PauseMode = "abort", *, timeout_s: float | None = None) -> None:
        """Stops generation. abort ends running requests with what they have; in_place keeps them and their cache;
        retract keeps them and drops their cache. New requests wait until resume()."""
        await self._json("POST", "/pause_generation", {"mode": mode}, timeout_s=timeout_s)

    async def resume(self, *, timeout_s: float | None = None) -> None:
        await self._json("POST", "/continue_generation", {}, timeout_s=timeout_s)

    async def flush_cache(self, *, timeout_s: float | None = None) -> bool:
        """Drops the KV cache. False when requests run or wait (the engine then refuses)."""
        try:
            await self._text("POST", "/flush_cache", {}, timeout_s=timeout_s)
        except EngineError as error:
            if error.status == 400:
                return False
            raise
        return True

    async def abort(self, rid: str | None = None) -> None:
        """Ends one request, or all of them when rid is None. An unknown rid is no error."""
        await self._text("POST", "/abort_request", {"abort_all": True} if rid is None else {"rid": rid})

    async def _json(self, method: str, path: str, body: Any, *, timeout_s: float | None = None) -> Any:
        text = await self._text(method, path, body, timeout_s=timeout_s)
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineError(f"{self.base_url}{path} answered something else than JSON.", status=200, text=text) from error

    async def _text(self, method: str, path: str, body: Any, *, timeout_s: float | None = None) -> str:
        limit = timeout_s if timeout_s is not None else self.control_timeout_s
        # httpx limits each read; what callers mean is the whole answer.
        timeout = httpx.Timeout(None, connect=min(_CONNECT_S, limit))
        try:
            async with asyncio.timeout(limit):
                response = await self._http.request(method, path, json=body, timeout=timeout)
        except httpx.ConnectTimeout as error:
            raise EngineUnreachable(f"{self.base_url} doesn't accept connections.", "Is the engine running?") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            raise EngineTimeout(f"{self.base_url}{path} didn't answer within {limit:g} s.") from error
        except httpx.TransportError as error:
            raise EngineUnreachable(
                f"{self.base_url}{path} is unreachable: {error or type(error).__name__}.", "Is the engine running?"
            ) from error
        if response.is_success:
            return response.text
        raise from_response(path, self.base_url, response.status_code, response.text, response.headers.get("retry-after"))


def parse_generation(reply: Any, top_logprobs_num: int = 0) -> Generation:
    """Reads one /generate answer; EngineError when it lacks what was asked for or holds numbers that aren't finite."""
    try:
        meta = reply["meta_info"]
        entries = meta["output_token_logprobs"]
        finish = meta["finish_reason"]
        spans = tuple(
            VersionSpan(parse_version(span["version"]), int(span["start"]), int(span["end"]))
            for span in meta.get("weight_versions") or ()
        )
        ids = tuple(int(entry[1]) for entry in entries)
        logprobs = tuple(_finite(entry[0]) for entry in entries)
        generation = Generation(
            rid=str(meta["id"]),
            response_ids=ids,
            logprobs=logprobs,
            finish_reason=finish["type"],
            matched=finish.get("matched"),
            weight_version=parse_version(meta.get("weight_version")),
            versions=spans,
            prompt_tokens=int(meta["prompt_tokens"]),
            text=str(reply.get("text") or ""),
            top=_top(meta["output_top_logprobs"][: len(ids)], top_logprobs_num) if top_logprobs_num and ids else None,
            abort_message=finish.get("message") if finish["type"] == "abort" else None,
        )
    except (KeyError, TypeError, IndexError, ValueError) as error:
        text = json.dumps(reply)[:2000]
        raise EngineError(f"Engine answer can't be read ({type(error).__name__}: {error}).", status=200, text=text) from error
    if "completion_tokens" in meta and meta["completion_tokens"] != len(ids):
        raise EngineError(f"Engine says {meta['completion_tokens']} sampled tokens and lists {len(ids)}.", status=200)
    return generation


def parse_version(value: Any) -> int:
    """Weight versions travel as strings; 'default', SGLang's name for the weights it started with, is 0."""
    if value in (None, "default"):
        return 0
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise EngineError(
            f"Weight version {value!r} is no number.", "Start the engine with a whole number as its weight version."
        ) from error


def _finite(value: Any) -> float:
    if value is None or not math.isfinite(value):
        raise ValueError(f"log-prob {value}")
    return float(value)


def _top(rows: Sequence[Sequence[Sequence[Any]]], k: int) -> TopK:
    """[R, K] sorted by falling log-prob, ties to the lower id."""
    import numpy as np

    from openclaw_core.types import TopK

    ids = np.array([[entry[1] for entry in row] for row in rows], dtype=np.int64)
    logprobs = np.array([[entry[0] for entry in row] for row in rows], dtype=np.float32)
    if ids.ndim != 2 or ids.shape[1] != k:
        raise ValueError(f"top-k entries of shape {ids.shape} where {k} per row were asked for")
    order = np.lexsort((ids, -logprobs), axis=-1)
    return TopK(np.take_along_axis(ids, order, -1), np.take_along_axis(logprobs, order, -1))
