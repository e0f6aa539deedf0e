"""Which candidate teaches a position: k*, the first argmax of a rule's scores over the real candidates.

A rule is one file in selections/ that binds RULE. Importing this file or a rule needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openclaw_core.loss.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Choice:
    """What a rule may look at, for N rows and M candidate places.

    overlap [N, M] int64 is O[k, t]; real [N, M] says which places hold a candidate. signal [N, M] is
    sum_v w_v |ell_T(v) - ell_old(v)| over the student's top-K, or None unless the rule reads it.
    step_of_row [N] numbers the step spans through all samples, -1 outside every span. group joins the ranks that hold
    the rows of these steps between them, None where all are here.
    """

    overlap: Tensor
    real: Tensor
    signal: Tensor | None
    step_of_row: Tensor
    steps: int
    group: ProcessGroup | None = None

    def per_step(self, values: Tensor) -> Tensor:
        """Sum of values [N, M] over each row's step, on whatever rank its rows are; [N, M], 0 outside every span."""
        bins = values.new_zeros(self.steps + 1, values.shape[1])
        # Rows outside every span fall into the last bin, which is then emptied.
        bins.index_add_(0, self.step_of_row % (self.steps + 1), values)
        bins[-1] = 0
        if self.group is not None:
            import torch.distributed as dist

            dist.all_reduce(bins, group=self.group)
        return bins[self.step_of_row]


@dataclass(frozen=True)
class Rule:
    """score maps a Choice to scores >= 0 [N, M]; negative scores set a candidate aside. None: the first one.

    candidates says how many candidates the teacher must score; reads_signal asks for Choice.signal.
    """

    score: Callable[[Choice], Tensor] | None
    candidates: Literal["all", "first"] = "all"
    reads_signal: bool = False


@dataclass(frozen=True)
class Selected:
    """k_star [N] int64; tied [N] bool: another real candidate had the same score (None without scores)."""

    k_star: Tensor
    tied: Tensor | None


RULES: Registry[Rule] = Registry("selection", "openclaw_core.loss.selections", "RULE")


def select(rule: Rule, choice: Choice) -> Selected:
    """First argmax of the rule's scores over the real candidates; fillers never win. Rows without one get 0."""
    if rule.score is None:
        return Selected(choice.step_of_row.new_zeros(choice.step_of_row.shape), None)
    scores = rule.score(choice).masked_fill(~choice.real, -1)
    best = scores.amax(-1, keepdim=True)
    at_best = scores == best
    return Selected(at_best.int().argmax(-1), at_best.sum(-1) > 1)
