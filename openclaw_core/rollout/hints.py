"""Which hints of the judge's votes become candidates."""

from __future__ import annotations

from collections.abc import Iterable

from openclaw_core.rollout.store import HintRecord, Vote
from openclaw_core.types import Hint

MIN_HINT_CHARACTERS = 10
"""A stripped hint must have more characters than this."""


def rank_hints(votes: Iterable[Vote], max_candidates: int) -> list[HintRecord]:
    """All distinct hints of a turn's hint votes, accepted ones first.

    A hint is accepted when its vote's decision is 1 and the stripped text has more than 10 characters. Accepted hints are
    deduplicated by text (votes counts how often it was given), ordered shortest first (ties in order of votes) and cut to
    max_candidates. The others follow with the reason why they were left.
    """
    counts: dict[str, int] = {}
    decided: dict[str, bool] = {}
    for vote in votes:
        text = (vote.hint or "").strip()
        if vote.kind == "hint" and text:
            counts[text] = counts.get(text, 0) + (vote.value == 1)
            decided[text] = decided.get(text, False) or vote.value == 1
    fit = sorted((text for text in counts if decided[text] and len(text) > MIN_HINT_CHARACTERS), key=len)
    accepted = [HintRecord(text, counts[text], True) for text in fit[:max_candidates]]
    surplus = [HintRecord(text, counts[text], False, "more than max_candidates") for text in fit[max_candidates:]]
    left = [text for text in counts if text not in fit]
    rejected = [HintRecord(text, counts[text], False, "too short" if decided[text] else "not decided for") for text in left]
    return accepted + surplus + rejected


def accepted_hints(records: Iterable[HintRecord]) -> tuple[Hint, ...]:
    return tuple(Hint(record.text, record.votes) for record in records if record.accepted)
