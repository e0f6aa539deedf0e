"""Whether megatron-bridge can read a model for a run. No torch here: plans ask too."""

from __future__ import annotations

import importlib.util
from typing import Any

Finding = tuple[str, str]


def bridge_findings(config: dict[str, Any], *, recompute: bool, load: str | None) -> list[Finding]:
    """What speaks against train.loader=megatron_bridge for the model of a config.json; load is the run's student.load."""
    found: list[Finding] = []
    if not installed():
        what = "train.loader is megatron_bridge, but megatron-bridge isn't installed."
        found.append((what, "Install it, or set train.loader=own."))
    if load is not None:
        what = f"train.loader is megatron_bridge, which reads student.hf, but student.load is {load}."
        found.append((what, "Set student.load=null, or train.loader=own."))
    sight = config.get("vision_config")
    if recompute and isinstance(sight, dict) and sight.get("deepstack_visual_indexes"):
        what = (
            f"{config.get('model_type')} feeds deepstack vision features into its layers, and megatron-bridge under full "
            "recompute hands those on in a list, through which no gradient flows."
        )
        found.append((what, "Set train.recompute=false, or train.loader=own."))
    return found


def installed() -> bool:
    """Whether there is a megatron.bridge to import."""
    try:
        return importlib.util.find_spec("megatron.bridge") is not None
    except (ImportError, ValueError):
        return False
