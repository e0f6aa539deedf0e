"""KL from student to teacher as a policy gradient: the clipped surrogate of A_v = w_v d_v (docs/method.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openclaw_core.config.schema import Loss
from openclaw_core.loss.divergence import Divergence

if TYPE_CHECKING:
    from torch import Tensor

    from openclaw_core.loss.surrogate import Surrogate
    from openclaw_core.loss.targets import OpdTargets


def term(logprobs: Tensor, opd: OpdTargets, live: Tensor, cfg: Loss) -> Surrogate:
    from openclaw_core.loss.surrogate import surrogate

    return surrogate(logprobs, opd.old_logprobs, opd.advantages, live, cfg)


DIVERGENCE = Divergence(term, surrogate=True)
