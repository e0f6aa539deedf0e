"""The parts of the objective at each row, before they are summed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from openclaw_core.loss.surrogate import Surrogate


@dataclass(frozen=True)
class Terms:
    """grpo [N], opd [N, B], kl [N]; None where the weight is 0."""

    grpo: Surrogate | None
    opd: Surrogate | None
    kl: Tensor | None
