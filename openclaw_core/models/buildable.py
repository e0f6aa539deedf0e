"""What the trainer builds: one answer for plans, `validate`, conversions and the builder itself. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openclaw_core.errors import Findings
from openclaw_core.models.architecture import DENSE, Architecture

Finding = tuple[str, str]
TRAIN_ONE = f"Train one of {', '.join(DENSE)}."

ROPE_PARAMETERS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Kinds of rope scaling that megatron/rope.py computes, and what each of them reads."""


def buildable(arch: Architecture) -> list[Finding]:
    """Why the trainer can't build this model, each reason with a remedy; empty where it can."""
    found: list[Finding] = []
    if not trained(arch.model_type):
        what = f"It is {arch.model_type}, and the trainer builds dense text models only."
        found.append((what, TRAIN_ONE))
    return found + rope_findings(arch.rope_scaling)


def trained(model_type: str) -> bool:
    """Whether the trainer builds models of this type: dense ones whose text tower isn't a part of something larger."""
    return model_type in DENSE


def rope_findings(scaling: dict[str, Any] | None) -> list[Finding]:
    """What of a rope scaling (None for plain rope) the trainer can't compute."""
    if scaling is None:
        return []
    kind = scaling.get("rope_type")
    if kind not in ROPE_PARAMETERS:
        known = ", ".join(["none", *ROPE_PARAMETERS])
        remedy = "Take the scaling out of config.json if contexts fit the length before it, or train another model."
        return [(f"Its rope scaling is {kind!r}, and the trainer computes {known}.", remedy)]
    wrong = [key for key in ROPE_PARAMETERS[kind] if not _positive(scaling.get(key))]
    stated = ", ".join(f"{key}={scaling.get(key)!r}" for key in wrong)
    remedy = "Take the config of the model's release."
    return [(f"Its rope scaling {kind!r} needs positive numbers, not {stated}.", remedy)] if wrong else []


def check_buildable(arch: Architecture, where: str | Path) -> None:
    """Raises Findings with every reason why the trainer can't build the architecture that was read from where."""
    reasons = buildable(arch)
    if reasons:
        raise Findings(f"The trainer can't build {where}.", reasons)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
