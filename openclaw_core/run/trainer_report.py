"""What the ranks of the student tell of a pass or a step, joined on rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from openclaw_core.config.schema import Loss
from openclaw_core.dumps.schema import TENSORS
from openclaw_core.loss.divergence import DIVERGENCES
from openclaw_core.loss.logprobs import RowStats
from openclaw_core.loss.metrics import Metrics
from openclaw_core.loss.targets import Targets
from openclaw_core.models.megatron.core import parallel_state
from openclaw_core.run.results import OldPass, StepResult
from openclaw_core.run.trainer_batch import MicroBatch
from openclaw_core.run.trainer_passes import Trained
from openclaw_core.types import TopK


def old_passes(batches: Sequence[MicroBatch]) -> dict[str, OldPass]:
    """By sample id what the old pass found; complete on rank 0. All ranks call it."""
    own = _merge([_per_sample(batch, batch.stats) for batch in batches if batch.stats is not None])
    return _merge(_from_last_stage(own if _first_of_context() else {}))


def step_result(trained: Sequence[Trained], loss: Loss, **known: Any) -> StepResult:
    """Metrics, dumps and losses of a step, beside what is known of it already; complete on rank 0. All ranks call it."""
    own = None
    if trained:
        metrics = reduce(add, [one.objective.metrics for one in trained])
        # Context ranks meet in a dump, and one of them has it.
        dumps = _merge([dump_arrays(one.batch, one.targets, one.stats, loss) for one in trained])
        losses = _merge([sample_losses(one.batch, one.objective.sample_losses) for one in trained])
        own = (Metrics(metrics.names, metrics.values.cpu()), dumps if _first_of_context() else {}, losses)
    parts = [part for part in _from_last_stage(own) if part is not None]
    if not parts:
        return StepResult(**known)
    total, all_dumps, all_losses = zip(*parts, strict=True)
    return StepResult(metrics=reduce(add, total).read(), dumps=_merge(all_dumps), losses=summed(all_losses), **known)


def _from_last_stage(own: Any) -> list[Any]:
    """What tensor-parallel rank 0 of each last pipeline stage has, one entry per data- and context-parallel rank."""
    speaks = parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0
    place = (parallel_state.get_data_parallel_rank(), parallel_state.get_context_parallel_rank())
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.gather_object((place, own) if speaks else None, everyone if dist.get_rank() == 0 else None, dst=0)
    return [value for _, value in sorted((e for e in everyone if e is not None), key=lambda e: e[0])]


def _first_of_context() -> bool:
    first: bool = parallel_state.get_context_parallel_rank() == 0
    return first


def _per_sample(batch: MicroBatch, stats: RowStats) -> dict[str, OldPass]:
    values = (stats.sampled_logprobs, stats.entropy, stats.lse, stats.top_ids, stats.top_logprobs)
    columns = [[part.cpu() for part in batch.per_sample(x)] for x in values]
    out = {}
    for sample, sampled, entropy, lse, ids, logprobs in zip(batch.samples, *columns, strict=True):
        top = TopK(ids.numpy(), logprobs.numpy())
        out[sample.sample_id] = OldPass(sampled.numpy(), entropy.numpy(), lse.numpy(), top)
    return out


def _merge(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def dump_arrays(batch: MicroBatch, targets: Targets, stats: RowStats, cfg: Loss) -> dict[str, dict[str, np.ndarray]]:
    """Per sample what a step dump keeps of the student's old pass, the selection and the support (dumps/schema.py).

    The sample itself and what the teacher said are with the driver, which adds them (run/keep.py).
    """
    packed: dict[str, torch.Tensor] = {
        "sampled_logprobs": stats.sampled_logprobs,
        "sampling_logprobs": stats.sampling_logprobs,
        "entropy": stats.entropy,
    }
    if stats.top_ids.shape[1]:
        ids = stats.top_ids.masked_fill(stats.top_logprobs == float("-inf"), -1)
        packed |= {"student_ids": ids, "student_logprobs": stats.top_logprobs}
    if targets.opd is not None:
        opd = targets.opd
        bins = opd.mask.shape[1] - opd.ids.shape[1]
        packed |= {
            "k_star": opd.k_star,
            "overlap": opd.overlap,
            "support_ids": torch.nn.functional.pad(opd.ids, (0, bins), value=-1),
            "support_mask": opd.mask,
            "support_student": opd.old_logprobs,
            "support_teacher": opd.teacher_logprobs,
        }
        if stats.gathered is not None:
            packed["student_at_teacher"] = stats.gathered.unflatten(1, (opd.overlap.shape[1], -1))
        # Other divergences were trained on none of them.
        if DIVERGENCES.get(cfg.divergence).surrogate:
            packed |= {"differences": opd.differences, "weights": opd.weights, "advantages": opd.advantages}
    dumps: dict[str, dict[str, np.ndarray]] = {sample.sample_id: {} for sample in batch.samples}
    for name, tensor in packed.items():
        for sample, part in zip(batch.samples, batch.per_sample(tensor), strict=True):
            dumps[sample.sample_id][name] = _as_stored(name, part, len(sample.candidates))
    return dumps


def sample_losses(batch: MicroBatch, losses: Mapping[str, torch.Tensor]) -> dict[str, dict[str, float]]:
    """Objective.sample_losses by sample id: of a context rank, the part of its rows."""
    columns = {name: values.tolist() for name, values in losses.items()}
    return {s.sample_id: {name: column[i] for name, column in columns.items()} for i, s in enumerate(batch.samples)}


def summed(parts: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The same of all ranks: context ranks' parts of a sample added up."""
    total: dict[str, dict[str, float]] = {}
    for part in parts:
        for sample_id, losses in part.items():
            before = total.get(sample_id, {})
            total[sample_id] = {name: before.get(name, 0.0) + value for name, value in losses.items()}
    return total


def _as_stored(name: str, part: torch.Tensor, candidates: int) -> np.ndarray:
    array = part.cpu().numpy()
    if TENSORS[name][0].startswith("C"):
        array = np.moveaxis(array[:, :candidates], 1, 0)
    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
