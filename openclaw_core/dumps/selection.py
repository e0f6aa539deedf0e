"""Why each candidate was chosen or not, computed again from what the dump holds and apart from the loss that chose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .schema import SampleDump, StepHeader

HEEDED = 0.5
SPANS_TOLD = 4


@dataclass(frozen=True, slots=True)
class SpanView:
    """A step span [start, end) with each candidate's sum of O and mean gap G (None where not in the dump).

    set_aside are candidates that signal_optimal leaves out. best is the first with the largest sum, tied others with the same.
    """

    start: int
    end: int
    overlap: tuple[int, ...]
    gap: tuple[float, ...] | None
    set_aside: tuple[int, ...]
    best: int
    tied: tuple[int, ...]


def gaps(sample: SampleDump) -> np.ndarray | None:
    """[C, R]: sum over the student's top-K of w |ell_T - ell_old|, w renormalised over it; None without teacher_at_student."""
    student, teacher = sample.get("student_logprobs"), sample.get("teacher_at_student")
    if student is None or teacher is None:
        return None
    known = np.isfinite(student)
    weights = np.where(known, np.exp(np.where(known, student, 0)), 0)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    with np.errstate(invalid="ignore"):
        terms = np.where(known & (weights > 0), weights * np.abs(teacher - student), 0.0)
    return np.asarray(terms.sum(-1))


def spans(header: StepHeader, sample: SampleDump) -> list[SpanView]:
    """The step spans of a sample (one over the whole reply where it has none); empty without overlaps."""
    overlap = sample.get("overlap")
    if overlap is None or not overlap.size:
        return []
    gap = gaps(sample)
    ranges = ((0, sample.length),) if sample.spans is None else sample.spans
    return [_span(header, overlap, gap, start, end) for start, end in ranges]


def _span(header: StepHeader, overlap: np.ndarray, gap: np.ndarray | None, start: int, end: int) -> SpanView:
    totals = overlap[:, start:end].sum(1)
    mean_gap = None if gap is None or end <= start else gap[:, start:end].mean(1)
    aside = np.zeros(len(totals), bool)
    if header.selection == "signal_optimal" and mean_gap is not None:
        aside = mean_gap < HEEDED * mean_gap.max()
    counted = np.where(aside, -1, totals)
    best = int(counted.argmax())
    return SpanView(
        start,
        end,
        tuple(int(total) for total in totals),
        None if mean_gap is None else tuple(float(value) for value in mean_gap),
        tuple(int(k) for k in np.flatnonzero(aside)),
        best,
        tuple(int(k) for k in np.flatnonzero(counted == counted[best]) if k != best),
    )


def expected_k_star(header: StepHeader, sample: SampleDump) -> np.ndarray | None:
    """k* [R] by the header's rule, or None where the dump lacks what the rule reads or the rule is unknown here."""
    if header.selection == "shortest":
        return np.zeros(sample.length, int)
    overlap = sample.get("overlap")
    if overlap is None or (header.selection == "signal_optimal" and gaps(sample) is None):
        return None
    if header.selection == "token_optimal":
        return np.asarray(overlap.argmax(0))
    if header.selection not in ("sequence_optimal", "signal_optimal"):
        return None
    chosen = np.zeros(sample.length, int)
    for span in spans(header, sample):
        chosen[span.start : span.end] = span.best
    return chosen


def why_candidate(header: StepHeader, sample: SampleDump, k: int) -> str:
    """One phrase on why candidate k teaches or doesn't, over the whole sample."""
    k_star = sample.get("k_star")
    if k_star is None:
        return "not scored: no OPD term for this sample" if sample.get("teacher_ids") is None else "no choice in this dump"
    share = float((k_star == k).mean()) if k_star.size else 0.0
    if sample.candidates == 1:
        return "the only candidate" if share else "the only candidate, and it teaches nowhere"
    if header.selection == "shortest":
        return "chosen: first in the order (shortest hint)" if k == 0 else "not chosen: a longer hint; only the first counts"
    overlap = sample.get("overlap")
    if overlap is None or k >= overlap.shape[0]:
        return "not chosen: not scored"
    if header.selection == "token_optimal":
        best = overlap.max(0)
        lost_ties = int(((overlap[k] == best) & (k_star != k)).sum())
        ties = f"; {lost_ties} ties lost to a lower number" if lost_ties else ""
        return f"largest O at {share:.0%} of positions{ties}"
    found = spans(header, sample)
    more = [f"and {len(found) - SPANS_TOLD} more spans"] if len(found) > SPANS_TOLD else []
    return "; ".join([*(_why_in_span(span, k, len(found) > 1) for span in found[:SPANS_TOLD]), *more])


def _why_in_span(span: SpanView, k: int, several: bool) -> str:
    where = f"in {span.start}:{span.end} " if several else ""
    total, best = span.overlap[k], span.overlap[span.best]
    if k in span.set_aside and span.gap is not None:
        return f"{where}set aside: G {span.gap[k]:.3f} < {HEEDED} x {max(span.gap):.3f}"
    if k == span.best:
        tie = f", tied with {', '.join(map(str, span.tied))}: the lowest number wins" if span.tied else ""
        return f"{where}chosen: sum of O {total}{tie}"
    if k in span.tied:
        return f"{where}not chosen: tied at sum of O {total} with {span.best}, the lower number"
    return f"{where}not chosen: sum of O {total} < {best} of {span.best}"


def why_position(header: StepHeader, sample: SampleDump, t: int, found: list[SpanView]) -> str:
    """One phrase on why k* is what it is at position t; found are the sample's spans."""
    if header.selection == "shortest" or sample.candidates == 1:
        return "first candidate" if sample.candidates > 1 else "only candidate"
    overlap = sample.get("overlap")
    if overlap is None:
        return "no overlaps in this dump"
    if header.selection == "token_optimal":
        best = overlap[:, t].max()
        tied = np.flatnonzero(overlap[:, t] == best)
        tie = f" ({', '.join(map(str, tied))} tie: the lowest number wins)" if len(tied) > 1 else ""
        return f"largest O here, {best}{tie}"
    span = next((span for span in found if span.start <= t < span.end), None)
    return "outside every step span: candidate 0" if span is None else _why_in_span(span, span.best, len(found) > 1)
