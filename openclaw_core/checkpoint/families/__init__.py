"""Rules of each family: one small file per family. Adding a family is adding its rules here."""

from __future__ import annotations

from openclaw_core.checkpoint.families import deepseek, dense, moe
from openclaw_core.checkpoint.mapping import Rule
from openclaw_core.models.architecture import NESTED

RULES: dict[str, tuple[Rule, ...]] = {
    "qwen3": dense.RULES,
    "qwen2": dense.RULES,
    "llama": dense.RULES,
    "qwen3_moe": moe.QWEN3,
    "qwen3_vl_moe": moe.QWEN3_VL,
    "qwen2_moe": moe.QWEN2,
    "deepseek_v3": deepseek.RULES,
}
EXTRA_STATES: dict[str, tuple[str, ...]] = {
    "qwen3": dense.EXTRA_STATES,
    "qwen2": dense.EXTRA_STATES,
    "llama": dense.EXTRA_STATES,
    "qwen3_moe": moe.EXTRA_STATES,
    "qwen3_vl_moe": moe.EXTRA_STATES,
    "qwen2_moe": (*moe.EXTRA_STATES, "mlp.shared_experts.linear_fc1", "mlp.shared_experts.linear_fc2"),
    "deepseek_v3": deepseek.EXTRA_STATES,
}
CARRIED: dict[str, tuple[str, ...]] = dict.fromkeys(NESTED, ("model.visual.*",))
