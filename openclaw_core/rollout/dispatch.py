"""The three cases of docs/method.md: what a judged turn becomes. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from openclaw_core.types import Candidate, Hint, Sample, SampleKind, Turn, Verdict

OnLength = Literal["drop", "negative", "keep"]

NO_SIGNAL = "no_signal"
"""Neither an accepted hint nor a verdict of +1 or -1."""
NO_VALID_VOTE = "no_valid_vote"
"""The judge answered, and nothing that counts."""

TOO_LONG = "too_long_for_teacher"
"""A candidate, or a whole turn where the un-hinted sequence is what the teacher would read, exceeds the teacher's context."""

FATAL_FLAGS = ("id_out_of_range", "empty", "placeholder_reply", "placeholder_in_prompt", "side")
"""Flags with which a turn is kept to be looked at and never trained; the first one found is its reason."""


@dataclass(frozen=True, slots=True)
class TooLong:
    """A hint whose candidate doesn't fit the teacher: tokens of hinted prompt and reply."""

    hint: Hint
    tokens: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A sample, or the reason why there is none; and the hints that were left because the teacher can't read them."""

    sample: Sample | None
    reason: str | None = None
    too_long: tuple[TooLong, ...] = ()


def majority(values: Iterable[int | None]) -> Verdict:
    """The value with the most valid votes; a tie of several is 0; None where no vote is valid."""
    votes = tuple(values)
    counts = {value: votes.count(value) for value in (1, 0, -1)}
    most = max(counts.values())
    if most == 0:
        return Verdict(None, votes)
    winners = [value for value, count in counts.items() if count == most]
    return Verdict(winners[0] if len(winners) == 1 else 0, votes)


def drop_reason(finish_reason: str, flags: Sequence[str], on_length: OnLength) -> str | None:
    """Why a turn can never become a sample, known when it is answered; None where it can."""
    for flag in FATAL_FLAGS:
        if flag in flags:
            return flag
    if finish_reason == "abort":
        return "abort"
    if finish_reason == "length" and on_length == "drop":
        return "length"
    return None


def dispatch(
    turn: Turn,
    verdict: Verdict,
    hints: Sequence[Hint],
    *,
    hinted_prompt_ids: Callable[[str], tuple[int, ...]],
    on_length: OnLength = "drop",
    flags: Sequence[str] = (),
    teacher_context: int | None = None,
    anchored: bool = False,
    sample_id: str,
) -> Dispatch:
    """What a turn with these votes becomes.

    hints are the accepted ones in order. hinted_prompt_ids renders the turn's own prompt with a hint. A reply cut at its length
    is dropped, gets the verdict -1 whatever the judge said ("negative"), or is treated like any other ("keep").

    A candidate of more than teacher_context tokens is left out whole, the others stay; where none is left the turn becomes what
    it is without hints. anchored says that the teacher reads un-hinted sequences too, so one that is too long can't be trained.
    """
    reason = drop_reason(turn.finish_reason, flags, on_length)
    if reason:
        return Dispatch(None, reason)
    value = verdict.value
    if turn.finish_reason == "length" and on_length == "negative":
        value = -1
    scored = value in (1, -1)
    length = len(turn.response_ids)
    hinted = [Candidate(hinted_prompt_ids(hint.text), hint) for hint in hints]
    candidates = tuple(c for c in hinted if teacher_context is None or len(c.hinted_prompt_ids) + length <= teacher_context)
    too_long = tuple(TooLong(c.hint, len(c.hinted_prompt_ids) + length) for c in hinted if c not in candidates and c.hint)
    if not candidates and not scored:
        reason = TOO_LONG if too_long else NO_SIGNAL if value == 0 else NO_VALID_VOTE
        return Dispatch(None, reason, too_long)
    if candidates:
        kind = SampleKind.OPD_RL if scored else SampleKind.OPD
    else:
        kind, candidates = SampleKind.RL, (Candidate(turn.prompt_ids),)
        if anchored and teacher_context is not None and len(turn.prompt_ids) + length > teacher_context:
            return Dispatch(None, TOO_LONG, too_long)
    sample = Sample(
        sample_id=sample_id,
        turn_id=turn.turn_id,
        kind=kind,
        reward=float(value) if scored and value is not None else 0.0,
        prompt_ids=turn.prompt_ids,
        response_ids=turn.response_ids,
        response_logprobs=turn.response_logprobs,
        loss_mask=(1,) * len(turn.response_ids),
        candidates=candidates,
        weight_version=turn.weight_version,
    )
    return Dispatch(sample, too_long=too_long)
