"""How tokens choose experts, from configs with and without the fields, and what megatron-core computes otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_core.models.architecture import Architecture, architecture_from_config
from openclaw_core.models.routing import Routing, routing_findings, routing_of

BASE = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "max_position_embeddings": 64,
    "moe_intermediate_size": 8,
    "num_experts_per_tok": 2,
}
QWEN = {**BASE, "model_type": "qwen3_moe", "num_experts": 4}
LATENT = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8}
DEEPSEEK = {**BASE, **LATENT, "model_type": "deepseek_v3", "n_group": 1, "topk_group": 1}


@pytest.mark.parametrize(
    ("family", "said", "found"),
    [
        ("qwen3_moe", {"norm_topk_prob": True}, Routing(normalised=True)),
        ("qwen3_moe", {}, Routing()),
        ("qwen2_moe", {}, Routing()),
        ("qwen3_vl_moe", {}, Routing(normalised=True)),
        ("deepseek_v3", {}, Routing(True, True, 8, 4, 2.5)),
        ("deepseek_v3", {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5}, Routing(True, True, 1, 1, 1.5)),
    ],
)
def test_routing(family, said, found):
    assert routing_of(said, family) == found


def test_the_defaults_are_transformers_own():
    import transformers

    for family, name in (("qwen3_moe", "Qwen3MoeConfig"), ("qwen2_moe", "Qwen2MoeConfig"), ("deepseek_v3", "DeepseekV3Config")):
        assert routing_of({}, family) == routing_of(getattr(transformers, name)().to_dict(), family)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**QWEN, "norm_topk_prob": True, "num_experts_per_tok": 1}, "doesn't normalise one expert"),
        ({**QWEN, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "Its rope scaling is 'dynamic'"),
        ({**DEEPSEEK, "rope_scaling": {"rope_type": "yarn", "factor": 40}}, "latent attention has rope scaling 'yarn'"),
        ({**DEEPSEEK, "rope_interleave": False}, "rope_interleave=false"),
        ({**DEEPSEEK, "norm_topk_prob": False}, "normalises sigmoid scores"),
        ({**DEEPSEEK, "n_group": 2, "topk_group": 2}, "num_experts_per_tok=2, topk_group=2"),
        ({**DEEPSEEK, "n_group": 2, "topk_group": 0}, "topk_group=0 isn't a positive integer"),
        ({**DEEPSEEK, "n_group": None}, "n_group=None isn't a positive integer"),
        ({**DEEPSEEK, "routed_scaling_factor": "2.5"}, "routed_scaling_factor='2.5' isn't a positive number"),
        ({**QWEN, "norm_topk_prob": "false"}, "norm_topk_prob='false' isn't true or false"),
        (QWEN, None),
        (DEEPSEEK, None),
        ({**DEEPSEEK, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}, None),
        ({**QWEN, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, None),
    ],
)
def test_what_megatron_would_compute_otherwise(config: dict[str, Any], said):
    arch: Architecture = architecture_from_config(config, "here")
    found = [what for what, _ in routing_findings(arch, config)]
    assert (said is None and not found) or (len(found) == 1 and said in found[0])
