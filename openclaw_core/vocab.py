"""Which columns of the vocabulary this rank holds, and the few collectives that join the ranks' parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class VocabShard:
    """Columns [start, start + size) of the padded vocabulary are this rank's logits [N, size].

    Ids at or past real_vocab are padding: they take part in nothing. group joins the ranks that share the vocabulary;
    None means that this rank holds all of it.
    """

    start: int
    size: int
    real_vocab: int
    group: dist.ProcessGroup | None = None

    @classmethod
    def whole(cls, real_vocab: int, size: int | None = None) -> VocabShard:
        """One rank with all columns, size of them (default: no padding)."""
        return cls(0, real_vocab if size is None else size, real_vocab)

    @property
    def real(self) -> int:
        """How many of this rank's columns are real; they are the first ones."""
        return max(0, min(self.size, self.real_vocab - self.start))

    def local(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Column of each id in this rank's logits (0 for foreign ids) and whether the id lives here."""
        column = ids - self.start
        own = (column >= 0) & (column < self.real)
        return column.masked_fill(~own, 0), own

    def max(self, x: Tensor) -> Tensor:
        """Largest over the ranks, in place."""
        if self.group is not None:
            dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the ranks, in place."""
        if self.group is not None:
            dist.all_reduce(x, dist.ReduceOp.SUM, group=self.group)
        return x

    def concat(self, x: Tensor) -> Tensor:
        """[N, K] of all ranks side by side, [N, ranks x K]."""
        if self.group is None:
            return x
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, dim=1)
