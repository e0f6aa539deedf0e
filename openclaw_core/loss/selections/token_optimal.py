"""k*(t) = first argmax_k O[k, t]."""

from openclaw_core.loss.selection import Rule

RULE = Rule(score=lambda choice: choice.overlap)
