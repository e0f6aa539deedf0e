"""Samples packed for the loss: the response positions of all samples of a micro-batch, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from openclaw_core.config.schema import Loss
from openclaw_core.errors import Findings, UserError
from openclaw_core.loss.tensors import map_tensors
from openclaw_core.types import Sample, SampleKind

GROUPS = tuple(SampleKind)


@dataclass(frozen=True)
class Rows:
    """N response rows of B samples.

    weight [N] is mask / masked count of its sample, so that a weighted sum over rows is the sum over samples of masked
    means; 0 for samples without a trainable token. step_of_row [N] numbers the step spans through all samples, -1
    outside. group_of_row [N] indexes GROUPS. opd [N] says whether the OPD term applies to the row's sample;
    real_candidates [N] is its K_i. engine_logprobs [N] are those the engine reported. group joins the ranks that hold
    these samples' rows between them (context parallel); None where all rows are here.
    """

    sample_ids: tuple[str, ...]
    lengths: tuple[int, ...]
    steps: int
    response_ids: Tensor
    weight: Tensor
    advantages: Tensor
    engine_logprobs: Tensor
    sample_of_row: Tensor
    position_of_row: Tensor
    step_of_row: Tensor
    group_of_row: Tensor
    real_candidates: Tensor
    opd: Tensor
    group: dist.ProcessGroup | None = None

    @property
    def count(self) -> int:
        """N."""
        return self.response_ids.shape[0]

    def to(self, device: torch.device | str) -> Rows:
        """The same rows with every tensor on device."""
        return map_tensors(self, lambda x: x.to(device))

    def take(self, index: Tensor | slice, group: dist.ProcessGroup | None = None) -> Rows:
        """The rows of index; they can't be split by sample. With group, its other ranks hold the rest of the rows."""
        return replace(map_tensors(self, lambda x: x[index]), lengths=(), group=group or self.group)

    def split(self, x: Tensor) -> list[Tensor]:
        """Per sample parts of a packed tensor [N, ...]."""
        return list(x.split(list(self.lengths)))

    def name(self, row: int) -> str:
        """Where a row is, in words."""
        return f"sample {self.sample_ids[int(self.sample_of_row[row])]}, response position {int(self.position_of_row[row])}"


def check_batch(samples: Sequence[Sample]) -> None:
    """UserError that names the samples when no sample of the batch has a trainable token."""
    if not any(any(sample.loss_mask) for sample in samples):
        names = ", ".join(sample.sample_id for sample in samples)
        raise UserError(
            f"no sample of the batch has a trainable token ({len(samples)} samples: {names}).",
            "Look at the loss masks of these samples; a batch needs at least one response token to learn from.",
        )


def pack_rows(
    samples: Sequence[Sample],
    cfg: Loss,
    *,
    real_vocab: int,
    advantages: Sequence[np.ndarray] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Rows:
    """Pack samples in the given order. advantages [R] per sample default to the raw reward at every position.

    Findings name every sample whose parts don't fit each other or hold NaN, Inf or ids outside the real vocabulary.
    A micro-batch may be empty of trainable tokens (its loss is 0); the batch is checked by check_batch.
    """
    if advantages is None:
        advantages = [np.full(len(sample.response_ids), sample.reward) for sample in samples]
    findings = [f for sample, a in zip(samples, advantages, strict=True) for f in _findings(sample, a, real_vocab)]
    if findings:
        raise Findings("samples cannot be trained on:", findings)
    lengths = [len(sample.response_ids) for sample in samples]
    steps, step_of_row = _steps(samples)

    def per_sample(values: Sequence[int | bool], kind: torch.dtype) -> Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values), lengths)).to(kind)

    def packed(parts: Sequence[Sequence[float] | np.ndarray], kind: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate([np.asarray(part, dtype=np.float64) for part in parts] or [np.zeros(0)])).to(kind)

    rows = Rows(
        sample_ids=tuple(sample.sample_id for sample in samples),
        lengths=tuple(lengths),
        steps=steps,
        response_ids=packed([sample.response_ids for sample in samples], torch.int64),
        weight=packed([np.asarray(sample.loss_mask) / max(1, sum(sample.loss_mask)) for sample in samples], dtype),
        advantages=packed(advantages, dtype),
        engine_logprobs=packed([sample.response_logprobs for sample in samples], dtype),
        sample_of_row=per_sample(range(len(samples)), torch.int64),
        position_of_row=packed([np.arange(length) for length in lengths], torch.int64),
        step_of_row=torch.from_numpy(step_of_row),
        group_of_row=per_sample([GROUPS.index(sample.kind) for sample in samples], torch.int64),
        real_candidates=per_sample([len(sample.candidates) for sample in samples], torch.int64),
        opd=per_sample([applies_opd(sample.kind, cfg) for sample in samples], torch.bool),
    )
    return rows.to(device)


def applies_opd(kind: SampleKind, cfg: Loss) -> bool:
    """Whether the OPD term applies to a sample of this kind (loss.opd_on_rl_only)."""
    return cfg.w_opd > 0 and (kind is not SampleKind.RL or cfg.opd_on_rl_only == "anchor")


def _findings(sample: Sample, advantages: np.ndarray, real_vocab: int) -> list[tuple[str, str]]:
    length = len(sample.response_ids)
    found: list[tuple[str, str]] = []

    def complain(what: str, remedy: str) -> None:
        found.append((f"sample {sample.sample_id} {what};", remedy))

    parts = {"response_logprobs": sample.response_logprobs, "loss_mask": sample.loss_mask, "advantages": advantages}
    for name, part in parts.items():
        if len(part) != length:
            complain(f"has {length} response_ids and {len(part)} {name}", "each needs one entry per response id.")
    for name in ("response_logprobs", "advantages"):
        part = np.asarray(parts[name], dtype=np.float64)
        bad = np.flatnonzero(~np.isfinite(part))
        if bad.size:
            complain(f"holds {part[bad[0]]} in {name} at response position {bad[0]}", "it must be finite.")
    ids = np.asarray(sample.response_ids, dtype=np.int64)
    outside = np.flatnonzero((ids < 0) | (ids >= real_vocab))
    if outside.size:
        at = int(outside[0])
        complain(f"has id {ids[at]} at response position {at}", f"the vocabulary has ids 0 to {real_vocab - 1}.")
    if set(sample.loss_mask) - {0, 1}:
        complain(f"has {sorted(set(sample.loss_mask) - {0, 1})[0]} in loss_mask", "entries must be 0 or 1.")
    end = 0
    for start, stop in sample.step_spans or ():
        if not end <= start < stop <= length:
            complain(f"has the step span [{start}, {stop})", f"spans must rise, not overlap and end by {length}.")
            break
        end = stop
    return found


def _steps(samples: Sequence[Sample]) -> tuple[int, np.ndarray]:
    steps, parts = 0, [np.zeros(0, np.int64)]
    for sample in samples:
        length = len(sample.response_ids)
        part = np.full(length, -1, np.int64)
        for start, stop in ((0, length),) if sample.step_spans is None else sample.step_spans:
            part[start:stop] = steps
            steps += 1
        parts.append(part)
    return steps, np.concatenate(parts)
