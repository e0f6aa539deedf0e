"""What the loss says about itself, as sums that add up over micro-batches and ranks.

Each metric is a weighted mean; sums and counts are kept apart. The weight of a row is its part of its sample's masked
mean, so that every sample counts once. Nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_core.config.schema import Loss
from openclaw_core.loss.rows import GROUPS, Rows
from openclaw_core.loss.surrogate import Surrogate
from openclaw_core.loss.targets import OpdTargets, Targets
from openclaw_core.loss.terms import Terms

Column = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Metrics:
    """values [2, groups, names]: sums and counts of each metric per SampleKind. Equal configs have equal names.

    Add micro-batches with +; add ranks by summing values (all-reduce).
    """

    names: tuple[str, ...]
    values: Tensor

    def __add__(self, other: Metrics) -> Metrics:
        assert self.names == other.names, "metrics of different objectives"
        return Metrics(self.names, self.values + other.values)

    def read(self) -> dict[str, dict[str, float]]:
        """Means per group ("all" and each SampleKind) and name; those without a count are left out. Synchronises."""
        values = self.values.double().cpu()
        means: dict[str, dict[str, float]] = {}
        for group, (sums, counts) in {"all": values.sum(1), **{g.value: values[:, i] for i, g in enumerate(GROUPS)}}.items():
            pairs = zip(self.names, sums.tolist(), counts.tolist(), strict=True)
            means[group] = {name: total / count for name, total, count in pairs if count > 0}
        return means


def measure(terms: Terms, per_row: Tensor, entropy: Tensor | None, rows: Rows, targets: Targets, cfg: Loss) -> Metrics:
    """All metrics of N rows; terms that are not computed have no metrics. entropy [N] is the current policy's."""
    weight = rows.weight
    columns: dict[str, Column] = {
        "loss/total": (per_row, weight),
        "batch/entropy": (targets.entropy, weight),
        "gap/engine_mean": ((targets.sampling_logprobs - rows.engine_logprobs).abs(), weight),
    }
    if entropy is not None:
        columns["loss/entropy"] = (entropy, weight)
    if terms.kl is not None:
        columns["loss/kl"] = (terms.kl, weight)
    if terms.grpo is not None:
        columns["loss/grpo"] = (terms.grpo.loss, weight)
        columns["ratio/mean"] = (terms.grpo.ratio, weight)
        assert terms.grpo.clipped is not None
        columns["ratio/clipped_share"] = (terms.grpo.clipped, weight)
    if terms.opd is not None and targets.opd is not None:
        columns |= _of_opd(targets.opd, terms.opd, rows, cfg)
    groups = torch.nn.functional.one_hot(rows.group_of_row, len(GROUPS)).to(weight)
    counts = torch.stack([count.to(weight) for _, count in columns.values()], dim=1)
    values = torch.stack([value.to(weight) for value, _ in columns.values()], dim=1)
    # A value without a count may be anything, also NaN.
    sums = torch.where(counts > 0, values * counts, 0.0)
    return Metrics(tuple(columns), torch.stack((groups.T @ sums, groups.T @ counts)))


def _of_opd(opd: OpdTargets, term: Surrogate, rows: Rows, cfg: Loss) -> dict[str, Column]:
    weight = rows.weight * rows.opd
    bins = opd.mask.sum(1)
    places = opd.ids >= 0
    size, some = places.sum(1), weight * (bins > 0)

    def mean(x: Tensor) -> Tensor:
        return torch.where(opd.mask, x, 0.0).sum(1) / bins.clamp(min=1)

    def mass(logprobs: Tensor) -> Tensor:
        return torch.where(places, logprobs[:, : places.shape[1]], float("-inf")).exp().sum(1)

    columns: dict[str, Column] = {
        "loss/opd": (term.loss.sum(1), weight),
        "ratio/opd_mean": (mean(term.ratio), some),
        "opd/abs_difference": (mean(opd.differences.abs()), some),
        "opd/overlap": (opd.overlap.gather(1, opd.k_star[:, None]).squeeze(1), weight),
        "opd/support_size": (size, weight),
        "opd/empty_share": (size == 0, weight),
        "opd/student_mass": (mass(opd.old_logprobs), weight),
        "opd/teacher_mass": (mass(opd.teacher_logprobs), weight),
        "opd/candidates": (rows.real_candidates, weight),
        "opd/k_star": (opd.k_star, weight),
        "opd/first_share": (opd.k_star == 0, weight),
    }
    if term.clipped is not None:
        columns["ratio/opd_clipped_share"] = (mean(term.clipped.to(weight)), some)
        columns["opd/signal"] = (opd.advantages.abs().sum(1), weight)
    if term.clipped is not None and cfg.diff_clip > 0:
        columns["opd/clipped_share"] = (mean((opd.differences.abs() >= cfg.diff_clip).to(weight)), some)
    for place in range(1, cfg.max_candidates):
        columns[f"opd/k_star_{place}_share"] = (opd.k_star == place, weight)
    if opd.tied is not None:
        choice = rows.real_candidates > 1
        columns["opd/choice_share"] = (choice, weight)
        columns["opd/tied_share"] = (opd.tied, weight * choice)
    return columns
