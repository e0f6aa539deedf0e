"""Jensen-Shannon divergence of current student and teacher: 1/2 sum_v (p log(p / m) + q log(q / m)), m = (p + q) / 2.

Differentiated as it stands, without ratio and clip: it is at most log 2 a position, and so is bounded where KL is not. With
tail: bin p and q are distributions over K + 1 bins; without it over S_t they are parts of two, and it is still >= 0, and 0
only where they agree, for its terms add up to (p + q) / 2 - m = 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from openclaw_core.config.schema import Loss
from openclaw_core.loss.divergence import Divergence

if TYPE_CHECKING:
    from torch import Tensor

    from openclaw_core.loss.surrogate import Surrogate
    from openclaw_core.loss.targets import OpdTargets


def term(logprobs: Tensor, opd: OpdTargets, live: Tensor, cfg: Loss) -> Surrogate:
    from openclaw_core.loss.surrogate import Surrogate, ratio

    log_p, log_q = (x.masked_fill(~live, 0.0).clamp(min=LEAST) for x in (logprobs, opd.teacher_logprobs))
    log_m = log_p.logaddexp(log_q) - math.log(2)
    parts = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return Surrogate(parts / 2, ratio(logprobs, opd.old_logprobs, live), clipped=None)


# Stands for log 0, whose p log p is 0.
LEAST = -1e4
DIVERGENCE = Divergence(term)
