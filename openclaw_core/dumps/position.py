"""One response position with everything that made its loss, as values that can be printed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .pull import pulls
from .schema import SampleDump, StepHeader
from .selection import gaps, spans, why_position
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
    """A token of the support: w, d (after clipping) and A; the tail bin has id -1.

    pull is -d OPD_t / d ell_cur(v) at cur = old: A, where there is one.
    """

    token: TokenText
    student_logprob: float | None
    teacher_logprob: float | None
    weight: float | None
    difference: float | None
    clipped: bool
    advantage: float | None
    pull: float | None


@dataclass(frozen=True, slots=True)
class PositionView:
    """Position t. None stands for what the dump doesn't hold; masses are probabilities inside the support.

    sampling_logprob is the old policy's at the engine's temperature, where that isn't the loss's.
    """

    t: int
    token: TokenText
    trained: bool
    sampled_logprob: float | None
    sampling_logprob: float | None
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


class Positions:
    """The positions of one sample, as values. What all of them share is computed once."""

    def __init__(self, header: StepHeader, sample: SampleDump, texts: TokenTexts) -> None:
        self.header, self.sample, self.texts = header, sample, texts
        self._gaps = gaps(sample)
        self._spans = spans(header, sample)
        self._pulls = pulls(header, sample)
        other = header.temperatures.get("engine") != header.temperature
        self._numbers = {name: sample.get(name) for name in ("sampled_logprobs", "engine_logprobs", "entropy")} | {
            "sampling_logprobs": sample.get("sampling_logprobs") if other else None,
            "signal": signal(header, sample),
            "student_mass": mass(sample, "support_student"),
            "teacher_mass": mass(sample, "support_teacher"),
        }

    def at(self, t: int) -> PositionView:
        """Everything of position t (0 <= t < R)."""
        sample = self.sample
        k_star = _number(sample.get("k_star"), t)
        chosen = None if k_star is None else int(k_star)
        student_ids, teacher_ids = _row(sample.get("student_ids"), t), sample.get("teacher_ids")
        at_k_star = (
            teacher_ids[chosen, t] if teacher_ids is not None and chosen is not None and chosen < len(teacher_ids) else None
        )
        numbers = {name: _number(array, t) for name, array in self._numbers.items()}
        return PositionView(
            t=t,
            token=self.texts.one(sample.tensors["response_ids"][t]),
            trained=bool(sample.tensors["loss_mask"][t]),
            sampled_logprob=numbers["sampled_logprobs"],
            sampling_logprob=numbers["sampling_logprobs"],
            engine_logprob=numbers["engine_logprobs"],
            entropy=numbers["entropy"],
            k_star=chosen,
            why="no choice in this dump" if chosen is None else why_position(self.header, sample, t, self._spans),
            signal=numbers["signal"],
            student_mass=numbers["student_mass"],
            teacher_mass=numbers["teacher_mass"],
            student=self._top(student_ids, _row(sample.get("student_logprobs"), t), set(_ids(at_k_star))),
            candidates=self._candidates(t, chosen, set(_ids(student_ids))),
            support=self._support(t),
        )

    def _candidates(self, t: int, chosen: int | None, own: set[int]) -> list[CandidateTop]:
        ids, logprobs = self.sample.get("teacher_ids"), self.sample.get("teacher_logprobs")
        overlap = self.sample.get("overlap")
        if ids is None or logprobs is None:
            return []
        return [
            CandidateTop(
                k=k,
                chosen=k == chosen,
                overlap=None if overlap is None else int(overlap[k, t]),
                gap=None if self._gaps is None else float(self._gaps[k, t]),
                top=self._top(ids[k, t], logprobs[k, t], own),
            )
            for k in range(ids.shape[0])
        ]

    def _support(self, t: int) -> list[SupportEntry]:
        ids, mask = self.sample.get("support_ids"), self.sample.get("support_mask")
        if ids is None:
            return []
        columns = ("support_student", "support_teacher", "weights", "differences", "advantages")
        rows = {name: _row(self.sample.get(name), t) for name in columns}
        pull = _row(self._pulls, t)
        entries = []
        for place in range(ids.shape[1]):
            if mask is not None and not mask[t, place]:
                continue
            student, teacher, weight, difference, advantage = (_number(rows[name], place) for name in columns)
            clipped = difference is not None and bool(at_clip(self.header, np.asarray([difference]))[0])
            token = TokenText(-1, "<rest>") if ids[t, place] < 0 else self.texts.one(ids[t, place])
            told = (token, student, teacher, weight, difference, clipped, advantage, _number(pull, place))
            entries.append(SupportEntry(*told))
        return entries

    def _top(self, ids: np.ndarray | None, logprobs: np.ndarray | None, other: set[int]) -> list[TokenProb]:
        if ids is None or logprobs is None:
            return []
        pairs = [(int(token), float(value)) for token, value in zip(ids, logprobs, strict=True) if token >= 0]
        return [TokenProb(self.texts.one(token), math.exp(min(value, 700.0)), value, token in other) for token, value in pairs]


def choose_positions(
    header: StepHeader,
    sample: SampleDump,
    *,
    start: int = 0,
    end: int | None = None,
    sort: str = "position",
    min_overlap: float | None = None,
) -> list[int]:
    """Positions start <= t < end with O at k* of at least min_overlap, in order or by falling signal (sort "signal")."""
    chosen = np.arange(sample.length)[start:end]
    overlap = overlap_at_k_star(sample)
    if min_overlap is not None:
        chosen = chosen[overlap[chosen] >= min_overlap] if overlap is not None else chosen[:0]
    if sort == "signal" and (pull := signal(header, sample)) is not None:
        chosen = chosen[np.argsort(-pull[chosen], kind="stable")]
    return [int(t) for t in chosen]


def _ids(row: np.ndarray | None) -> list[int]:
    return [] if row is None else [int(value) for value in row if value >= 0]


def _row(array: np.ndarray | None, t: int) -> np.ndarray | None:
    return None if array is None else array[t]


def _number(array: np.ndarray | None, t: int) -> float | None:
    return None if array is None else float(array[t])
