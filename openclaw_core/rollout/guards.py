"""Structured evidence about a turn that needs no judge: a tool that failed, a call repeated to no effect. Pure functions.

What is found is stored beside the judge's votes under the guard's name. It overrides the verdict only where that is switched on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from openclaw_core.rollout.sessions import arguments_of
from openclaw_core.rollout.store import Vote
from openclaw_core.rollout.template import text_of
from openclaw_core.types import Message, Turn

TOOL_ERROR = "tool_error"
REPEATED_CALL = "repeated_call"

FAILED_STATES = frozenset({"error", "failed", "failure"})
POLLING = ("poll", "wait", "watch", "status", "sleep", "process")
"""A tool whose name has one of these words is asked again on purpose."""


def guard_votes(turn: Turn, next_state: Sequence[Message]) -> list[Vote]:
    """One vote of -1 per guard that fires, its name in `reason`."""
    fired = []
    if any(message.get("role") == "tool" and is_error(message) for message in next_state):
        fired.append(TOOL_ERROR)
    if repeats_in_vain(turn, next_state):
        fired.append(REPEATED_CALL)
    return [Vote("guard", index, -1, reason=name) for index, name in enumerate(fired)]


def is_error(result: Message) -> bool:
    """Whether a tool result says of itself, as a JSON object, that the call failed."""
    try:
        data = json.loads(text_of(result.get("content")))
    except ValueError:
        return False
    if not isinstance(data, dict):
        return False
    said = str(data.get("status", "")).lower() in FAILED_STATES
    marked = any(data.get(key) is True for key in ("isError", "is_error"))
    denied = any(data.get(key) is False for key in ("ok", "success"))
    return said or marked or denied or bool(data.get("error"))


def repeats_in_vain(turn: Turn, next_state: Sequence[Message]) -> bool:
    """Whether the turn makes the calls of the reply before it once more and gets the same results; polling tools may."""
    calls = _calls(turn.reply)
    if not calls or any(word in name.lower() for name, _ in calls for word in POLLING):
        return False
    for index in range(len(turn.messages) - 1, -1, -1):
        if turn.messages[index].get("role") == "assistant":
            before = turn.messages[index]
            return _calls(before) == calls and _results(turn.messages[index + 1 :]) == _results(next_state) != []
    return False


def _calls(reply: Message) -> list[tuple[str, Any]]:
    functions = [call.get("function", {}) for call in reply.get("tool_calls") or ()]
    return [(str(function.get("name")), arguments_of(function.get("arguments"))) for function in functions]


def _results(messages: Sequence[Message]) -> list[str]:
    return [text_of(message.get("content")) for message in messages if message.get("role") == "tool"]
