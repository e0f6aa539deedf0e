"""How tokens choose their experts: read from a config, with what of it megatron-core computes otherwise. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openclaw_core.models.architecture import Architecture
from openclaw_core.models.buildable import rope_findings
from openclaw_core.models.hf_config import Problems, flag, integer, number

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


def routing_of(text: dict[str, Any], family: str, problems: Problems | None = None) -> Routing:
    """From the text part of a config. What it leaves out has the default of transformers' class for the family; what can't be
    read is added to problems.
    """
    problems = [] if problems is None else problems
    normalised = flag(text, "norm_topk_prob", family == "deepseek_v3", problems)
    if family != "deepseek_v3":
        # Qwen3-VL-MoE has no such field: its router always normalises.
        return Routing(normalised=normalised or family == "qwen3_vl_moe")
    text = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, **text}
    return Routing(
        normalised=normalised,
        sigmoid=True,
        groups=integer(text, "n_group", problems),
        groups_per_token=integer(text, "topk_group", problems),
        scale=number(text, "routed_scaling_factor", problems),
    )


def routing_findings(arch: Architecture, text: dict[str, Any]) -> list[Finding]:
    """Why megatron-core's own layers would compute another model of experts than this config's; empty where they wouldn't."""
    problems: Problems = []
    routing, chosen = routing_of(text, arch.family, problems), arch.experts_per_token
    if problems:
        return problems
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
