"""Which turn a request goes on from: lineages by prompt prefix.

A request continues the turn whose messages and reply its own messages begin with. Anything else in the same session (a summary
request, a sub-agent, another system prompt) begins a lineage of its own and can't be taken for a reaction. The store holds a
hash of every turn's messages and reply, so this module keeps nothing in memory.

Which id names the session: the header X-Session-Id, else the body's `user`, else one is made. All three are recorded. Requests
without an id of their own continue turns of such requests only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from openclaw_core.rollout.store import SessionRecord, Store, TurnRecord
from openclaw_core.rollout.template import text_of
from openclaw_core.types import Message

PLACEHOLDERS = (
    "Agent couldn't generate a response",
    "Agent couldn\u2019t generate a response",
    "No response generated",
    "LLM request timed out",
)
"""Texts that client applications put where a reply should be."""

_ROLES_OF_NEXT_STATE = ("user", "tool")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands: its session and lineage, the turn it continues, and that turn's next state.

    closes is set when the continued turn is still open, so that next_state is the reaction to it.
    """

    session: SessionRecord
    lineage_id: str
    parent_turn_id: str | None
    closes: bool
    next_state: tuple[Message, ...]


def canonical(message: Message) -> str:
    """What must agree for two messages to be the same one, whatever a client drops or adds when it sends a reply back."""
    calls = [
        [call.get("id"), call.get("function", {}).get("name"), arguments_of(call.get("function", {}).get("arguments"))]
        for call in message.get("tool_calls") or ()
    ]
    parts = [message.get("role"), text_of(message.get("content")).strip(), message.get("tool_call_id"), calls]
    return json.dumps(parts, ensure_ascii=True, sort_keys=True)


def prefix_keys(messages: Sequence[Message]) -> list[str]:
    """One key per prefix: keys[i] names messages[: i + 1]."""
    keys, running = [], hashlib.sha256()
    for message in messages:
        running.update(canonical(message).encode() + b"\n")
        keys.append(running.hexdigest())
    return keys


def continuation_key(messages: Sequence[Message], reply: Message) -> str:
    """The key that requests which go on from this reply begin with."""
    return prefix_keys([*messages, reply])[-1]


def place_request(
    store: Store, messages: Sequence[Message], *, header_id: str | None = None, user_id: str | None = None, side: bool = False
) -> Place:
    """Finds session, lineage and continued turn. Writes the session row; closes nothing.

    A side request (one that the client says isn't the conversation itself) never closes a turn. Of several turns that fit, the
    one with the longest prefix counts, among those an open one, and then the newest.
    """
    keys = prefix_keys(messages)
    # Only replies can end a turn, and the last message is never one that is already answered.
    ends = {keys[i]: i for i in range(len(messages) - 1) if messages[i].get("role") == "assistant"}
    session = store.open_session(header_id=header_id, user_id=user_id) if header_id or user_id else None
    found = store.find_continued(list(ends), session.session_id if session else None)
    if not found:
        session = session or store.open_session()
        return Place(session, uuid4().hex, None, False, ())
    turn_id, session_id, lineage_id, key, state = max(found, key=lambda row: (ends[row[3]], row[4] == "open"))
    if session is None:
        store.touch_session(session_id)
        session = store.session(session_id)
        assert session is not None
    next_state = reaction(messages[ends[key] + 1 :])
    closes = state == "open" and bool(next_state) and not side
    # A further request after a reply that has its next state is another branch: a retry or an edit.
    stays = closes or (state == "dropped" and not side)
    return Place(session, lineage_id if stays else uuid4().hex, turn_id, closes, next_state)


def reaction(following: Sequence[Message]) -> tuple[Message, ...]:
    """The user message or tool results right after a reply, up to the next reply of anyone."""
    taken: list[Message] = []
    for message in following:
        if message.get("role") == "assistant":
            break
        if message.get("role") in _ROLES_OF_NEXT_STATE:
            taken.append(message)
    return tuple(taken)


def extends(prompt_ids: Sequence[int], parent: TurnRecord) -> bool:
    """Whether a prompt begins with the ids that the continued turn had and sampled; templates needn't keep that."""
    before = parent.turn.prompt_ids + parent.turn.response_ids
    return tuple(prompt_ids[: len(before)]) == before


def has_placeholder(texts: Sequence[str], placeholders: Sequence[str] = PLACEHOLDERS) -> bool:
    """Whether one of the texts is, or quotes, a client's stand-in for a reply."""
    folded = [text.casefold() for text in texts]
    return any(placeholder.casefold() in text for placeholder in placeholders for text in folded)


def arguments_of(arguments: Any) -> Any:
    """Arguments of a tool call as a value, so that spacing makes no difference; text that is no JSON as it is."""
    if isinstance(arguments, str):
        try:
            return json.loads(arguments)
        except ValueError:
            return arguments
    return arguments
