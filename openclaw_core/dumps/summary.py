"""A sample in a few numbers: per candidate, per quarter of the reply, and overall."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .pull import pulls
from .schema import HintDump, SampleDump, StepHeader
from .selection import SpanView, gaps, spans, why_candidate


@dataclass(frozen=True, slots=True)
class CandidateSummary:
    """Of one candidate: mean O, G (mean gap over the positions inside spans), share of positions it teaches, and why.

    student_mass and teacher_mass are the means over positions of the probability that either side has in the support that this
    candidate gives. None stands for what the dump doesn't hold.
    """

    k: int
    hint: HintDump
    scored: bool
    mean_overlap: float | None
    gap: float | None
    chosen_share: float | None
    student_mass: float | None
    teacher_mass: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Quarter:
    """Positions of one quarter, by place in the reply or by entropy (low to high): means over them.

    gain is ell_T of k* - ell_old at the sampled id, over the gain_known positions where that id is in the support.
    """

    by: str
    label: str
    positions: int
    signal: float | None
    gap: float | None
    gain: float | None
    gain_known: int


@dataclass(frozen=True, slots=True)
class SampleSummary:
    """A whole sample. signal is the mean over positions of what signal() says; trained counts positions with mask 1."""

    length: int
    trained: int
    mean_overlap: float | None
    signal: float | None
    empty_share: float | None
    clipped_share: float | None
    student_mass: float | None
    teacher_mass: float | None
    engine_gap: float | None
    candidates: list[CandidateSummary]
    spans: list[SpanView]
    quarters: list[Quarter]
    absent: list[str]


def summarise(header: StepHeader, sample: SampleDump) -> SampleSummary:
    """The summary of a sample; means are over all positions of the reply unless said otherwise."""
    mask, differences = sample.get("support_mask"), sample.get("differences")
    entries = int(mask.sum()) if mask is not None else 0
    clipped = None
    if mask is not None and differences is not None and header.diff_clip > 0 and entries:
        clipped = float(at_clip(header, differences)[mask > 0].mean())
    return SampleSummary(
        length=sample.length,
        trained=int(sample.tensors["loss_mask"].sum()),
        mean_overlap=mean(overlap_at_k_star(sample)),
        signal=mean(signal(header, sample)),
        empty_share=None if mask is None else mean(mask.sum(1) == 0),
        clipped_share=clipped,
        student_mass=mean(mass(sample, "support_student")),
        teacher_mass=mean(mass(sample, "support_teacher")),
        engine_gap=mean(engine_gap(header, sample)),
        candidates=[_candidate(header, sample, k) for k in range(sample.candidates)],
        spans=spans(header, sample),
        quarters=quarters(header, sample),
        absent=absent(header, sample),
    )


def engine_gap(header: StepHeader, sample: SampleDump) -> np.ndarray | None:
    """[R]: |trainer - engine| of the sampled id's log-prob, at the sampling temperature; None without such a pair."""
    engine, sampling = sample.get("engine_logprobs"), sample.get("sampling_logprobs")
    if sampling is None and header.temperatures.get("engine") == header.temperature:
        sampling = sample.get("sampled_logprobs")
    return None if engine is None or sampling is None else np.abs(sampling - engine)


def at_clip(header: StepHeader, differences: np.ndarray) -> np.ndarray:
    """Which differences lie at the clip (as float32 keeps them)."""
    return np.abs(differences) >= np.float32(header.diff_clip) if header.diff_clip > 0 else np.zeros(differences.shape, bool)


def signal(header: StepHeader, sample: SampleDump) -> np.ndarray | None:
    """[R]: the sum over the support of |A|, or of the pulls that stand for A under another divergence."""
    pull = pulls(header, sample)
    return None if pull is None else np.abs(pull).sum(1)


def no_signal(header: StepHeader, sample: SampleDump) -> str | None:
    """Why a sample has no signal; None where it has one."""
    if signal(header, sample) is not None:
        return None
    if sample.get("support_ids") is None:
        return f"it has no OPD term ({no_teacher(header, sample)})"
    return f"its dump holds no advantages, and none can be found for divergence {header.divergence}"


def no_teacher(header: StepHeader, sample: SampleDump) -> str:
    """Why a sample's dump has nothing of the teacher's side."""
    if header.w_opd == 0:
        return "loss.w_opd is 0"
    return f"rl sample with opd_on_rl_only: {header.opd_on_rl_only}" if sample.kind == "rl" else "not written"


def mass(sample: SampleDump, name: str) -> np.ndarray | None:
    """[R]: probability in the support, by "support_student" or "support_teacher"."""
    logprobs, mask = sample.get(name), sample.get("support_mask")
    return None if logprobs is None or mask is None else np.where(mask > 0, np.exp(logprobs), 0).sum(1)


def overlap_at_k_star(sample: SampleDump) -> np.ndarray | None:
    """[R]: O at k*; None without overlaps or choices."""
    overlap, k_star = sample.get("overlap"), sample.get("k_star")
    if overlap is None or k_star is None or not overlap.size:
        return None
    return np.asarray(overlap[np.clip(k_star, 0, overlap.shape[0] - 1), np.arange(sample.length)])


def mean(values: np.ndarray | None) -> float | None:
    """The mean of the finite values; None where there is none."""
    if values is None:
        return None
    values = np.asarray(values, dtype=np.float64)
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else None


def absent(header: StepHeader, sample: SampleDump) -> list[str]:
    """What this sample's dump doesn't hold, with the reason where the header tells it."""
    found = []
    if sample.get("teacher_ids") is None:
        found.append(f"candidates' top-K, overlaps and support ({no_teacher(header, sample)})")
    elif sample.get("teacher_at_student") is None:
        found.append(f"the teacher at the student's ids, and G ({header.subset} subset with {header.selection} doesn't read it)")
    if sample.get("support_ids") is not None and sample.get("advantages") is None:
        found.append(f"w, d and A (divergence {header.divergence}{'' if pulls(header, sample) is None else ': see the pull'})")
    names = {"student_ids": "the student's top-K", "engine_logprobs": "the engine's log-probs", "entropy": "entropy"}
    found += [text for name, text in names.items() if sample.get(name) is None]
    if sample.dropped_hints is None:
        found.append("hints that were dropped (the dump is from before they were kept)")
    if not any(hint.next_state for hint in sample.hints) and not sample.next_state:
        found.append("next-state excerpts")
    return found


def _candidate(header: StepHeader, sample: SampleDump, k: int) -> CandidateSummary:
    overlap, k_star = sample.get("overlap"), sample.get("k_star")
    scored = overlap is not None and k < overlap.shape[0]
    gap = gaps(sample)
    inside = np.zeros(sample.length, bool)
    for start, end in ((0, sample.length),) if sample.spans is None else sample.spans:
        inside[start:end] = True
    student, teacher = _masses(header, sample, k) if scored else (None, None)
    return CandidateSummary(
        k=k,
        hint=sample.hints[k],
        scored=scored,
        mean_overlap=mean(overlap[k]) if overlap is not None and scored else None,
        gap=mean(gap[k][inside]) if gap is not None and k < gap.shape[0] else None,
        chosen_share=None if k_star is None else mean(k_star == k),
        student_mass=student,
        teacher_mass=teacher,
        why=why_candidate(header, sample, k),
    )


def _masses(header: StepHeader, sample: SampleDump, k: int) -> tuple[float | None, float | None]:
    """Mean probability of student and candidate k in the support that k gives, by the header's subset."""
    student_ids, teacher_ids = sample.get("student_ids"), sample.get("teacher_ids")
    student, teacher = sample.get("student_logprobs"), sample.get("teacher_logprobs")
    if student_ids is None or teacher_ids is None or student is None or teacher is None:
        return None, None
    at_student, at_teacher = sample.get("teacher_at_student"), sample.get("student_at_teacher")
    if header.subset == "student":
        return _mean_mass(student, student_ids >= 0), _mean_mass(None if at_student is None else at_student[k], student_ids >= 0)
    own = teacher_ids[k]
    if header.subset == "teacher":
        return _mean_mass(None if at_teacher is None else at_teacher[k], own >= 0), _mean_mass(teacher[k], own >= 0)
    shared = (student_ids[:, :, None] == own[:, None, :]) & (own[:, None, :] >= 0)
    return _mean_mass(student, shared.any(2)), _mean_mass(teacher[k], shared.any(1))


def _mean_mass(logprobs: np.ndarray | None, counted: np.ndarray) -> float | None:
    return None if logprobs is None else mean(np.where(counted, np.exp(logprobs), 0).sum(-1))


def quarters(header: StepHeader, sample: SampleDump) -> list[Quarter]:
    """Signal, gap and gain by quarter of the reply and of entropy: does the teacher pull where the student is unsure?"""
    places = [np.asarray(part) for part in np.array_split(np.arange(sample.length), 4)]
    groups = [("position", f"{part[0]}-{part[-1]}", part) for part in places if part.size]
    entropy = sample.get("entropy")
    if entropy is not None:
        ordered = np.array_split(np.argsort(entropy, kind="stable"), 4)
        groups += [("entropy", f"{entropy[part].min():.2f}-{entropy[part].max():.2f}", part) for part in ordered if part.size]
    pull, gap, gain = signal(header, sample), _gap_at_k_star(sample), _gain(sample)
    return [_quarter(by, label, part, pull, gap, gain) for by, label, part in groups]


def _quarter(
    by: str, label: str, part: np.ndarray, pull: np.ndarray | None, gap: np.ndarray | None, gain: np.ndarray | None
) -> Quarter:
    values = None if gain is None else gain[part]
    return Quarter(
        by,
        label,
        int(part.size),
        None if pull is None else mean(pull[part]),
        None if gap is None else mean(gap[part]),
        mean(values),
        0 if values is None else int(np.isfinite(values).sum()),
    )


def _gap_at_k_star(sample: SampleDump) -> np.ndarray | None:
    gap, k_star = gaps(sample), sample.get("k_star")
    if gap is None or k_star is None or not gap.size:
        return None
    return np.asarray(gap[np.clip(k_star, 0, gap.shape[0] - 1), np.arange(sample.length)])


def _gain(sample: SampleDump) -> np.ndarray | None:
    """[R]: ell_T - ell_old at the sampled id, nan where it isn't in the support."""
    ids, mask = sample.get("support_ids"), sample.get("support_mask")
    student, teacher = sample.get("support_student"), sample.get("support_teacher")
    if ids is None or mask is None or student is None or teacher is None:
        return None
    hit = (ids == sample.tensors["response_ids"][:, None]) & (mask > 0)
    with np.errstate(invalid="ignore"):
        return np.where(hit.any(1), np.where(hit, teacher - student, 0).sum(1), np.nan)
