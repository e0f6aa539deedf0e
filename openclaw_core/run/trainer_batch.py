"""A step's samples as this rank's micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from openclaw_core.config.schema import Loss
from openclaw_core.loss.logprobs import RowStats
from openclaw_core.loss.rows import Rows, pack_rows
from openclaw_core.loss.targets import Targets
from openclaw_core.loss.teacher_rows import TeacherRows
from openclaw_core.models.megatron.context import ContextPart, context_multiple, own_part
from openclaw_core.models.megatron.packing import Pack, SequenceIds, make_pack, plan_packs, split_evenly
from openclaw_core.types import Sample

R = TypeVar("R", Rows, TeacherRows)


@dataclass
class MicroBatch:
    """One pack with what the loss needs of it. rows is None for the empty micro-batch of a rank without samples.

    whole are the rows of all samples, rows those on this rank: with context parallelism the ones of context.held, and
    pack, teacher, stats, reference and targets are this rank's too.
    """

    samples: tuple[Sample, ...]
    pack: Pack
    whole: Rows | None
    rows: Rows | None
    context: ContextPart | None = None
    teacher: TeacherRows | None = None
    stats: RowStats | None = None
    reference: torch.Tensor | None = None
    targets: Targets | None = None

    def own(self, x: R) -> R:
        """The rows of whole that this rank holds of Rows or TeacherRows of all samples."""
        return x if self.context is None else x.take(self.context.held)

    def per_sample(self, x: torch.Tensor) -> list[torch.Tensor]:
        """A tensor of this rank's rows [n, ...] as one per sample [R, ...], all rows of it; every rank of context calls it."""
        assert self.whole is not None
        if self.context is not None:
            x = x.to(torch.uint8) if x.dtype == torch.bool else x
            everyones = x.new_zeros(self.whole.count, *x.shape[1:])
            everyones[self.context.held] = x
            dist.all_reduce(everyones, group=self.context.group)
            x = everyones
        return self.whole.split(x)


def split_batch(
    samples: Sequence[Sample],
    *,
    rank: int,
    ranks: int,
    context_ranks: int,
    budget: int,
    multiple: int,
    cfg: Loss,
    real_vocab: int,
    device: torch.device,
) -> list[MicroBatch]:
    """This data-parallel rank's share of the samples, packed within a budget of tokens per context rank.

    A rank that gets no sample makes one micro-batch without response rows, so that it takes part in every collective.
    """
    multiple *= context_multiple(context_ranks)
    lengths = [len(s.prompt_ids) + len(s.response_ids) for s in samples]
    share = split_evenly(lengths, ranks)[rank]
    if not share:
        shortest = samples[min(range(len(samples)), key=lengths.__getitem__)]
        pack = make_pack([SequenceIds((*shortest.prompt_ids, *shortest.response_ids), ())], device, multiple=multiple)
        part = own_part(pack)
        return [MicroBatch((), part.pack if part else pack, None, None, part)]
    batches = []
    for group in plan_packs([lengths[i] for i in share], budget * context_ranks):
        chosen = tuple(samples[share[i]] for i in group)
        pack = make_pack([SequenceIds(s.prompt_ids, s.response_ids) for s in chosen], device, multiple=multiple)
        rows = pack_rows(chosen, cfg, real_vocab=real_vocab, device=device)
        part = own_part(pack)
        if part is None:
            batches.append(MicroBatch(chosen, pack, rows, rows))
        else:
            batches.append(MicroBatch(chosen, part.pack, rows, rows.take(part.held, part.group), part))
    return batches


def concat_stats(parts: Sequence[RowStats]) -> RowStats:
    """Statistics of consecutive chunks of rows as those of all rows."""
    columns: dict[str, Any] = {}
    for field in fields(RowStats):
        values = [getattr(part, field.name) for part in parts]
        columns[field.name] = torch.cat(values) if isinstance(values[0], torch.Tensor) else values[0]
    return RowStats(**columns)
