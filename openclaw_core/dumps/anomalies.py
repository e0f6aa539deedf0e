"""Numbers of a dump that can't be right, counted, each with the first place where it is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .schema import SampleDump, StepHeader
from .selection import expected_k_star

ID_TENSORS = ("response_ids", "student_ids", "teacher_ids", "support_ids")
TOP_TENSORS = ("student_ids", "teacher_ids")
CLOSE = 1e-4


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What is wrong, in which tensor, how many times, and the first index (by the tensor's axes)."""

    what: str
    tensor: str
    count: int
    first: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.count} {self.what} in {self.tensor}, first at {list(self.first)}"


def anomalies(header: StepHeader, sample: SampleDump, last_id: int | None = None) -> list[Anomaly]:
    """All anomalies of a sample; last_id is the tokenizer's last id (the header's vocabulary counts where it is None)."""
    ends = [end for end in (last_id, header.vocab - 1) if end is not None and end >= 0]
    last = min(ends, default=np.iinfo(np.int32).max)
    found = [*_non_finite(sample), *_ids(sample, last), *_duplicates(sample), *_sizes(header, sample), *_arithmetic(sample)]
    return [Anomaly(what, tensor, int(bad.sum()), _first(bad)) for what, tensor, bad in found if bad.any()]


Found = Iterator[tuple[str, str, np.ndarray]]


def _first(bad: np.ndarray) -> tuple[int, ...]:
    return tuple(int(index) for index in np.argwhere(bad)[0]) if bad.ndim else ()


def _non_finite(sample: SampleDump) -> Found:
    mask = sample.get("support_mask")
    for name, array in sample.tensors.items():
        if array.dtype.kind != "f":
            continue
        bad = ~np.isfinite(array)
        if name.startswith("support_") and mask is not None:
            bad &= mask > 0
        if name in ("student_logprobs", "teacher_logprobs", "teacher_at_student", "student_at_teacher"):
            bad = np.isnan(array) | np.isposinf(array)  # an id of probability 0 is allowed
        yield "non-finite numbers", name, bad


def _ids(sample: SampleDump, last: int) -> Found:
    for name in ID_TENSORS:
        array = sample.get(name)
        if array is not None:
            yield f"ids above {last}, the last real id", name, array > last


def _duplicates(sample: SampleDump) -> Found:
    for name in TOP_TENSORS:
        array = sample.get(name)
        if array is None or array.shape[-1] < 2:
            continue
        ordered = np.sort(array, axis=-1)
        yield "rows with an id twice", name, ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(-1)


def _sizes(header: StepHeader, sample: SampleDump) -> Found:
    width = max((array.shape[-1] for name in TOP_TENSORS if (array := sample.get(name)) is not None), default=0)
    yield f"top-K of {width} ids over a vocabulary of {header.vocab}", "student_ids", np.asarray(width > header.vocab > 0)
    k_star, overlap = sample.get("k_star"), sample.get("overlap")
    if k_star is not None:
        yield (
            f"choices outside the {sample.candidates} candidates",
            "k_star",
            (k_star < 0) | (k_star >= max(sample.candidates, 1)),
        )
        expected = expected_k_star(header, sample)
        if expected is not None:
            yield f"choices that {header.selection} would not make", "k_star", k_star != expected
    if overlap is not None:
        yield f"overlaps outside 0 to {width}", "overlap", (overlap < 0) | (overlap > max(width, 0))


def _arithmetic(sample: SampleDump) -> Found:
    weights, differences, advantages = (sample.get(name) for name in ("weights", "differences", "advantages"))
    mask = sample.get("support_mask")
    if weights is not None and mask is not None:
        total = np.where(mask > 0, weights, 0).sum(1)
        yield "rows of w that don't sum to 1", "weights", (mask > 0).any(1) & (np.abs(total - 1) > CLOSE)
    if weights is not None and differences is not None and advantages is not None:
        with np.errstate(invalid="ignore"):
            off = np.abs(advantages - weights * differences) > CLOSE * (1 + np.abs(advantages))
        yield "entries with A other than d w", "advantages", off
