"""One response position with everything that made its loss, as values that can be printed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .schema import SampleDump, StepHeader
from .selection import gaps, why_position
from .summary import at_clip, mass, overlap_at_k_star, signal
from .tokens import TokenText, TokenTexts


@dataclass(frozen=True, slots=True)
class TokenProb:
    """A token of a top-K. shared: the other side's top-K has it, too (for the student: that of k*)."""

    token: TokenText
    prob: float
    logprob: float
    shared: bool


@dataclass(frozen=True, slots=True)
class CandidateTop:
    """A candidate's top-K at a position, its overlap with the student's, and its gap."""

    k: int
    chosen: bool
    overlap: int | None
    gap: float | None
    top: list[TokenProb]


@dataclass(frozen=True, slots=True)
class SupportEntry:
    """A token of the support: w, d (after clipping) and A; the tail bin has id -1."""

    token: TokenText
    student_logprob: float | None
    teacher_logprob: float | None
    weight: float | None
    difference: float | None
    clipped: bool
    advantage: float | None


@dataclass(frozen=True, slots=True)
class PositionView:
    """Position t. None stands for what the dump doesn't hold; masses are probabilities inside the support."""

    t: int
    token: TokenText
    trained: bool
    sampled_logprob: float | None
    engine_logprob: float | None
    entropy: float | None
    k_star: int | None
    why: str
    signal: float | None
    student_mass: float | None
    teacher_mass: float | None
    student: list[TokenProb]
    candidates: list[CandidateTop]
    support: list[SupportEntry]


def position(header: StepHeader, sample: SampleDump, t: int, texts: TokenTexts) -> PositionView:
    """Everything of position t (0 <= t < R)."""
    k_star = _number(sample.get("k_star"), t)
    chosen = None if k_star is None else int(k_star)
    student_ids = _row(sample.get("student_ids"), t)
    own = set(_ids(student_ids))
    teacher_ids = sample.get("teacher_ids")
    at_k_star = teacher_ids[chosen, t] if teacher_ids is not None and chosen is not None and chosen < len(teacher_ids) else None
    return PositionView(
        t=t,
        token=texts.one(sample.tensors["response_ids"][t]),
        trained=bool(sample.tensors["loss_mask"][t]),
        sampled_logprob=_number(sample.get("sampled_logprobs"), t),
        engine_logprob=_number(sample.get("engine_logprobs"), t),
        entropy=_number(sample.get("entropy"), t),
        k_star=chosen,
        why=why_position(header, sample, t) if chosen is not None else "no choice in this dump",
        signal=_number(signal(sample), t),
        student_mass=_number(mass(sample, "support_student"), t),
        teacher_mass=_number(mass(sample, "support_teacher"), t),
        student=_top(student_ids, _row(sample.get("student_logprobs"), t), set(_ids(at_k_star)), texts),
        candidates=_candidates(sample, t, chosen, own, texts),
        support=_support(header, sample, t, texts),
    )


def choose_positions(
    sample: SampleDump, *, start: int = 0, end: int | None = None, sort: str = "position", min_overlap: float | None = None
) -> list[int]:
    """Positions start <= t < end with O at k* of at least min_overlap, in order or by falling signal (sort "signal")."""
    chosen = np.arange(sample.length)[start:end]
    overlap = overlap_at_k_star(sample)
    if min_overlap is not None:
        chosen = chosen[overlap[chosen] >= min_overlap] if overlap is not None else chosen[:0]
    pull = signal(sample)
    if sort == "signal" and pull is not None:
        chosen = chosen[np.argsort(-pull[chosen], kind="stable")]
    return [int(t) for t in chosen]


def _candidates(sample: SampleDump, t: int, chosen: int | None, own: set[int], texts: TokenTexts) -> list[CandidateTop]:
    ids, logprobs, overlap, gap = (sample.get("teacher_ids"), sample.get("teacher_logprobs"), sample.get("overlap"), gaps(sample))
    if ids is None or logprobs is None:
        return []
    return [
        CandidateTop(
            k=k,
            chosen=k == chosen,
            overlap=None if overlap is None else int(overlap[k, t]),
            gap=None if gap is None else float(gap[k, t]),
            top=_top(ids[k, t], logprobs[k, t], own, texts),
        )
        for k in range(ids.shape[0])
    ]


def _support(header: StepHeader, sample: SampleDump, t: int, texts: TokenTexts) -> list[SupportEntry]:
    ids, mask = sample.get("support_ids"), sample.get("support_mask")
    if ids is None:
        return []
    columns = ("support_student", "support_teacher", "weights", "differences", "advantages")
    rows = {name: _row(sample.get(name), t) for name in columns}
    entries = []
    for place in range(ids.shape[1]):
        if mask is not None and not mask[t, place]:
            continue
        student, teacher, weight, difference, advantage = (_number(rows[name], place) for name in columns)
        clipped = difference is not None and bool(at_clip(header, np.asarray([difference]))[0])
        token_id = int(ids[t, place])
        token = TokenText(-1, "<rest>") if token_id < 0 else texts.one(token_id)
        entries.append(SupportEntry(token, student, teacher, weight, difference, clipped, advantage))
    return entries


def _top(ids: np.ndarray | None, logprobs: np.ndarray | None, other: set[int], texts: TokenTexts) -> list[TokenProb]:
    if ids is None or logprobs is None:
        return []
    pairs = [(int(token), float(value)) for token, value in zip(ids, logprobs, strict=True) if token >= 0]
    return [TokenProb(texts.one(token), math.exp(min(value, 700.0)), value, token in other) for token, value in pairs]


def _ids(row: np.ndarray | None) -> list[int]:
    return [] if row is None else [int(value) for value in row if value >= 0]


def _row(array: np.ndarray | None, t: int) -> np.ndarray | None:
    return None if array is None else array[t]


def _number(array: np.ndarray | None, t: int) -> float | None:
    return None if array is None else float(array[t])
