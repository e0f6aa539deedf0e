"""When a request ends, in SGLang's order: stop strings, stop tokens, length."""

from __future__ import annotations

from typing import Any

from openclaw_core.rollout.engines.embedded.model import EngineModel
from openclaw_core.rollout.engines.embedded.request import Request


def finish_reason(request: Request, model: EngineModel) -> dict[str, Any] | None:
    """SGLang's finish_reason after the newest token, or None to go on."""
    params, token = request.params, request.output_ids[-1]
    if params.stop:
        text = model.decode(request.output_ids[-_window(params.stop) :], params.skip_special_tokens)
        for stop in params.stop:
            if stop in text:
                return {"type": "stop", "matched": stop}
    if not params.ignore_eos and (token in model.stop_ids or token in params.stop_token_ids):
        return {"type": "stop", "matched": token}
    if len(request.output_ids) >= request.max_new_tokens:
        return {"type": "length", "length": request.max_new_tokens}
    return None


def visible_text(request: Request, model: EngineModel) -> str:
    """The output without the matched stop token or string, unless no_stop_trim asks for it."""
    reason = request.reason or {}
    matched, keep = reason.get("matched"), request.params.no_stop_trim
    ids = request.output_ids[:-1] if isinstance(matched, int) and not keep else request.output_ids
    text = model.decode(ids, request.params.skip_special_tokens)
    if isinstance(matched, str) and not keep:
        text = text.split(matched, 1)[0]
    return text


def _window(stops: tuple[str, ...]) -> int:
    """Ids whose text can't miss a stop string that ends in the newest id: every id but special ones holds at least one byte."""
    return max(len(stop.encode()) for stop in stops) + 8
