"""Rows as values: what the store takes and gives beyond the shared nouns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from openclaw_core.types import Message, Sample, Turn

TurnState = Literal["open", "closed", "sampled", "dropped"]
SampleState = Literal["ready", "taken", "trained", "dropped"]
VoteKind = Literal["verdict", "hint", "guard"]


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn with what only the record needs.

    continuation_key is the hash of messages and reply (see sessions.py). A turn with a drop_reason is kept to be looked at and
    never judged. request holds what was asked for and what was done with it.
    """

    turn: Turn
    text: str
    continuation_key: str
    thinking: bool = True
    parent_turn_id: str | None = None
    flags: tuple[str, ...] = ()
    request: dict[str, Any] = field(default_factory=dict)
    drop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A stored turn. next_state holds the messages that followed it in its own lineage, None while it is open."""

    turn: Turn
    state: TurnState
    reason: str | None
    text: str
    thinking: bool
    parent_turn_id: str | None
    next_state: tuple[Message, ...] | None
    next_turn_id: str | None
    flags: tuple[str, ...]
    request: dict[str, Any]
    created_at: float
    closed_at: float | None
    judged_at: float | None


@dataclass(frozen=True, slots=True)
class Vote:
    """One answer of the judge, or what a guard found (kind guard, its name as the reason).

    value None is no vote, for the given reason; prompt_sha256 names the prompt file that asked.
    """

    kind: VoteKind
    index: int
    value: int | None
    hint: str | None = None
    reason: str | None = None
    raw: str = ""
    prompt_sha256: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HintRecord:
    """One distinct hint of a turn, with the reason where it was not accepted."""

    text: str
    votes: int
    accepted: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """A stored sample with what became of it."""

    sample: Sample
    state: SampleState
    reason: str | None
    trained_step: int | None
    created_at: float
    scored_at: float | None


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session and where its id came from: the header, the body's user field, or us."""

    session_id: str
    id_source: str
    client_id: str | None
    header_id: str | None
    user_id: str | None
    started_at: float
    last_seen_at: float
    ended_at: float | None
    end_reason: str | None
