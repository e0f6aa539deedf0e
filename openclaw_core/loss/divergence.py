"""What the OPD term measures between student and teacher at a position, over the bins of its support.

A divergence is one file in divergences/ that binds DIVERGENCE. Importing this file or a divergence needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openclaw_core.config.schema import Loss
from openclaw_core.loss.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from openclaw_core.loss.surrogate import Surrogate
    from openclaw_core.loss.targets import OpdTargets


@dataclass(frozen=True)
class Divergence:
    """term(logprobs, opd, live, cfg) is the OPD term at N rows and B bins.

    logprobs [N, B] are the current policy's, the only ones with a gradient; live [N, B] says which bins count, the others
    must add 0 and get no gradient, whatever they hold. surrogate: the term is the clipped surrogate of opd.advantages,
    which diff_clip bounds and the fused kernel computes; any other runs on the plain path.
    """

    term: Callable[[Tensor, OpdTargets, Tensor, Loss], Surrogate]
    surrogate: bool = False


DIVERGENCES: Registry[Divergence] = Registry("divergence", "openclaw_core.loss.divergences", "DIVERGENCE")
