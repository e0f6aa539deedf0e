"""How tokens choose their experts: read from a config, with what of it megatron-core computes otherwise. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openclaw_core.models.architecture import Architecture
from openclaw_core.models.buildable import rope_findings

Finding = tuple[str, str]


@dataclass(frozen=True)
class Routing:
    """normalised: the chosen experts' weights sum to 1 (times scale); sigmoid: scores are sigmoids with a bias on the choice,
    not a softmax. groups, of which groups_per_token are looked into, is 1 where all experts are looked into."""

    normalised: bool = False
    sigmoid: bool = False
    groups: int = 1
    groups_per_token: int = 1
    scale: float = 1.0


def routing_of(text: dict[str, Any], family: str) -> Routing:
    """From the text part of a config. What it leaves out has the default of transformers' class for the family."""
    if family == "deepseek_v3":
        return Routing(
            normalised=text.get("norm_topk_prob", True),
            sigmoid=True,
            groups=text.get("n_group", 8),
            groups_per_token=text.get("topk_group", 4),
            scale=text.get("routed_scaling_factor", 2.5),
        )
    # Qwen3-VL-MoE has no such field: its router always normalises.
    return Routing(normalised=family == "qwen3_vl_moe" or text.get("norm_topk_prob", False))


def routing_findings(arch: Architecture, text: dict[str, Any]) -> list[Finding]:
    """Why megatron-core's own layers would compute another model of experts than this config's; empty where they wouldn't."""
    routing, chosen = routing_of(text, arch.family), arch.experts_per_token
    found = [] if arch.mla else rope_findings(arch.rope_scaling)
    if arch.mla and arch.rope_scaling:
        found.append((f"Its latent attention has rope scaling {arch.rope_scaling['rope_type']!r}.", ""))
    if arch.mla and not text.get("rope_interleave", True):
        found.append(("rope_interleave=false: megatron-core's latent attention interleaves.", ""))
    if routing.sigmoid and not routing.normalised:
        found.append(("norm_topk_prob=false: megatron-core normalises sigmoid scores.", ""))
    if not routing.sigmoid and routing.normalised and chosen == 1:
        found.append(("num_experts_per_tok=1 with norm_topk_prob: megatron-core doesn't normalise one expert.", ""))
    if routing.groups > 1 and chosen // routing.groups_per_token != 2:
        stated = f"num_experts_per_tok={chosen}, topk_group={routing.groups_per_token}"
        found.append((f"{stated}: megatron-core scores a group by so many experts as fall to it, the model by two.", ""))
    return found
