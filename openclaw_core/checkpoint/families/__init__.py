"""Rules of each family: one small file per family. Adding a family is adding its rules here."""

from __future__ import annotations

from openclaw_core.checkpoint.families import dense
from openclaw_core.checkpoint.mapping import Rule

EXTRA_STATES = dense.EXTRA_STATES
RULES: dict[str, tuple[Rule, ...]] = {"qwen3": dense.RULES, "qwen2": dense.RULES, "llama": dense.RULES}
