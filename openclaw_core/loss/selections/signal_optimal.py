"""sequence_optimal among the candidates whose hint the teacher heeds.

Overlap is largest where the teacher ignores the hint, so candidates with G[k] < 0.5 max_k G are set aside first,
G[k] = mean over the step of sum_v w_v |ell_{T,k}(v) - ell_old(v)| over the student's top-K.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openclaw_core.loss.selection import Choice, Rule

if TYPE_CHECKING:
    from torch import Tensor

HEEDED = 0.5


def score(choice: Choice) -> Tensor:
    assert choice.signal is not None
    # All candidates of a step share its length, so sums compare as means do; float64 keeps the order of rows out.
    heeded = choice.per_step(choice.signal.double().masked_fill(~choice.real, 0.0))
    set_aside = heeded < HEEDED * heeded.amax(-1, keepdim=True)
    return choice.per_step(choice.overlap).masked_fill(set_aside, -1)


RULE = Rule(score=score, reads_signal=True)
