"""Answers in OpenAI's shapes: one JSON object, or the same reply as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from openclaw_core.types import Message, Turn


def finish_reason(turn: Turn) -> str:
    if turn.finish_reason == "length":
        return "length"
    return "tool_calls" if turn.reply.get("tool_calls") else "stop"


def usage(turn: Turn) -> dict[str, int]:
    prompt, completion = len(turn.prompt_ids), len(turn.response_ids)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def completion(turn: Turn, model: str, created: float) -> dict[str, Any]:
    """A chat.completion object."""
    choice = {"index": 0, "message": turn.reply, "logprobs": None, "finish_reason": finish_reason(turn)}
    return {
        "id": f"chatcmpl-{turn.turn_id}", "object": "chat.completion", "created": int(created), "model": model,
        "choices": [choice], "usage": usage(turn),
    }  # fmt: skip


def events(turn: Turn, model: str, created: float, *, include_usage: bool) -> Iterator[str]:
    """chat.completion.chunk events of a finished reply, closed by [DONE]: the same text as the plain answer has."""
    head = {"id": f"chatcmpl-{turn.turn_id}", "object": "chat.completion.chunk", "created": int(created), "model": model}

    def chunk(delta: dict[str, Any], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _event({**head, "choices": [choice]} | ({"usage": None} if include_usage else {}))

    yield chunk({"role": "assistant"})
    for delta in _deltas(turn.reply):
        yield chunk(delta)
    yield chunk({}, finish_reason(turn))
    if include_usage:
        yield _event({**head, "choices": [], "usage": usage(turn)})
    yield "data: [DONE]\n\n"


def _deltas(reply: Message) -> Iterator[dict[str, Any]]:
    if reply.get("reasoning_content"):
        yield {"reasoning_content": reply["reasoning_content"]}
    if reply.get("content"):
        yield {"content": reply["content"]}
    for index, call in enumerate(reply.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": index, **call}]}


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
