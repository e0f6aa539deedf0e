"""k*(t) = 0: candidates are ordered shortest hint first."""

from openclaw_core.loss.selection import Rule

RULE = Rule(score=None, candidates="first")
