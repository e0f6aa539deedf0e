"""The objective through the fused kernel: the gradient is written over the logits while the loss is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_core.config.schema import Loss
from openclaw_core.loss import kernels
from openclaw_core.loss.rows import Rows
from openclaw_core.loss.surrogate import Surrogate
from openclaw_core.loss.targets import Targets
from openclaw_core.loss.terms import Terms
from openclaw_core.vocab import VocabShard

# Places of a support that the kernel takes.
MOST_PLACES = 128


def fusable(logits: Tensor, rows: Rows, targets: Targets, shard: VocabShard) -> bool:
    """Whether the fused kernel can take this objective: all of the vocabulary on this rank, float32 rows, a small support."""
    single = rows.weight.dtype == torch.float32
    return shard.group is None and single and targets.gather_ids.shape[1] <= MOST_PLACES and kernels.usable(logits)


@dataclass(frozen=True)
class FusedRows:
    """What the kernel says of N rows; see PER_ROW and PER_PLACE of kernels/fused.py."""

    per_row: Tensor
    per_place: Tensor | None

    @classmethod
    def empty(cls, targets: Targets) -> FusedRows:
        from openclaw_core.loss.kernels.fused import PER_PLACE, PER_ROW

        like = targets.old_logprobs.float()
        opd = targets.opd
        places = None if opd is None else like.new_empty(len(PER_PLACE), *opd.mask.shape)
        return cls(like.new_empty(len(PER_ROW), like.shape[0]), places)

    def write(self, part: slice, logits: Tensor, rows: Rows, targets: Targets, cfg: Loss, shard: VocabShard) -> None:
        """Fill the rows of part, and logits of those rows with their gradient; rows and targets are those rows' too."""
        from openclaw_core.loss.kernels.fused import forward_and_gradient

        place = None if self.per_place is None else self.per_place[:, part]
        forward_and_gradient(logits, rows, targets, cfg, shard.real, self.per_row[:, part], place)

    @property
    def total(self) -> Tensor:
        """Loss of each row [N]."""
        return self.per_row[0]

    @property
    def good(self) -> Tensor:
        """Rows [N] with a weight and finite log-probs."""
        return self.per_row[6] > 0

    def terms(self, cfg: Loss) -> Terms:
        """The same parts as the plain path's, without a graph."""
        row = self.per_row
        return Terms(
            grpo=Surrogate(row[1], row[2], row[3]) if cfg.w_rl > 0 else None,
            opd=None if self.per_place is None else Surrogate(*self.per_place.unbind()),
            kl=row[4] if cfg.kl_coef else None,
        )

    def entropy(self, cfg: Loss) -> Tensor | None:
        """[N], where the loss has an entropy term."""
        return self.per_row[5] if cfg.entropy_coef else None
