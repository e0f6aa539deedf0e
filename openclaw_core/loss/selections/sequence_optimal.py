"""k*(t) = first argmax_k of the sum of O[k, .] over the step of t; 0 outside every span."""

from openclaw_core.loss.selection import Rule

RULE = Rule(score=lambda choice: choice.per_step(choice.overlap))
