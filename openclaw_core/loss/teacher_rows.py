"""What the teacher said of the samples, packed to the rows of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from openclaw_core.config.schema import Loss
from openclaw_core.errors import Findings
from openclaw_core.loss.needs import needs
from openclaw_core.loss.rows import Rows
from openclaw_core.loss.tensors import map_tensors
from openclaw_core.types import TeacherScores


@dataclass(frozen=True)
class TeacherRows:
    """M candidate places of N rows: ids and logprobs [N, M, K] of the native top-K, real [N, M].

    at_student [N, M, K] holds log-probs at the student's top-K ids, None until known. Places past a sample's K_i, and
    all places of rows without OPD, are not real and hold id -1.
    """

    ids: Tensor
    logprobs: Tensor
    at_student: Tensor | None
    real: Tensor

    def gather_ids(self) -> Tensor:
        """All native ids as row_stats(gather_ids=...) takes them, [N, M x K]."""
        return self.ids.flatten(1)

    def take(self, index: Tensor | slice) -> TeacherRows:
        """The rows of index, for a rank that holds only some (context parallel)."""
        return map_tensors(self, lambda x: x[index])

    def with_at_student(self, rows: Rows, parts: Mapping[str, np.ndarray]) -> TeacherRows:
        """Add log-probs at the student's top-K ids, [K_i, R, K] by sample id; samples without OPD need none."""
        findings: list[tuple[str, str]] = []
        packed = _pack(rows, self.real.cpu(), parts, self.ids.shape[2], findings, "at_student")
        if findings:
            raise Findings("teacher scores cannot be used:", findings)
        return replace(self, at_student=packed.to(self.logprobs))


def pack_teacher(rows: Rows, scores: Sequence[TeacherScores], cfg: Loss, *, real_vocab: int) -> TeacherRows:
    """Pack the scores of the samples of rows, in any order; samples without OPD need none.

    Findings name every sample whose scores are missing, of the wrong shape, hold NaN or +Inf, or ids outside the vocabulary.
    """
    by_id = {score.sample_id: score for score in scores}
    k = min(cfg.k, real_vocab)
    places = 1 if needs(cfg).candidates == "first" else int(rows.real_candidates.max()) if rows.count else 1
    real = _real(rows, places)
    findings: list[tuple[str, str]] = []
    ids = _pack(rows, real, {i: s.top.ids for i, s in by_id.items()}, k, findings, "top.ids")
    logprobs = _pack(rows, real, {i: s.top.logprobs for i, s in by_id.items()}, k, findings, "top.logprobs")
    outside = real[:, :, None] & ((ids < 0) | (ids >= real_vocab))
    if not findings and outside.any():
        row = int(outside.flatten(1).any(1).nonzero()[0])
        findings.append((f"{rows.name(row)}: a teacher id is outside the vocabulary;", f"ids go from 0 to {real_vocab - 1}."))
    if findings:
        raise Findings("teacher scores cannot be used:", findings)
    device, dtype = rows.weight.device, rows.weight.dtype
    # An id of probability 0 is in no support; without an id it can't match one of the student's either.
    ids = ids.masked_fill(~real[:, :, None] | (logprobs == float("-inf")), -1)
    packed = TeacherRows(ids.to(device), logprobs.to(device, dtype), None, real.to(device))
    known = {i: s.at_student for i, s in by_id.items() if s.at_student is not None}
    wanted = {rows.sample_ids[i] for i in rows.sample_of_row[rows.opd].unique().tolist()}
    return packed.with_at_student(rows, known) if needs(cfg).at_student and wanted <= set(known) else packed


def _real(rows: Rows, places: int) -> Tensor:
    place = torch.arange(places)
    return rows.opd.cpu()[:, None] & (place < rows.real_candidates.cpu()[:, None])


def _pack(
    rows: Rows, real: Tensor, parts: Mapping[str, np.ndarray], width: int, findings: list[tuple[str, str]], what: str
) -> Tensor:
    """[K_i, R, >= width] per sample to [N, M, width] on the host; wrong parts become findings and stay empty."""
    filler, dtype = (-1, np.int64) if what == "top.ids" else (0, np.float64)
    packed = np.full((*real.shape, width), filler, dtype)
    counts = real.sum(1).tolist()
    start = 0
    for sample_id, length in zip(rows.sample_ids, rows.lengths, strict=True):
        stop = start + length
        count = counts[start] if length else 0
        if count:
            part = parts.get(sample_id)
            fault = _fault(part, count, length, width)
            if fault:
                findings.append((f"sample {sample_id}: {what} {fault[0]};", fault[1]))
            else:
                assert part is not None
                packed[start:stop, :count] = np.moveaxis(part[:count, :, :width], 0, 1)
        start = stop
    return torch.from_numpy(packed)


def _fault(part: np.ndarray | None, count: int, length: int, width: int) -> tuple[str, str] | None:
    if part is None:
        return "is missing", "the teacher has to score this sample."
    if part.ndim != 3 or part.shape[0] < count or part.shape[1] != length or part.shape[2] < width:
        return f"has shape {list(part.shape)}", f"expected [{count}, {length}, {width}]."
    bad = np.argwhere(np.isnan(part) | np.isposinf(part)) if part.dtype.kind == "f" else np.zeros((0, 3))
    if len(bad):
        candidate, position, _ = bad[0]
        return (
            f"holds {part[tuple(bad[0])]} for candidate {candidate} at response position {position}",
            "it must be finite or -inf.",
        )
    return None
