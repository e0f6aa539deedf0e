"""DeepSeek-V3: latent attention, dense layers first, then experts with a shared one and a bias on the router's choice.

megatron keeps q and kv of latent attention per head in the release's own order ([nope | rope] and [nope | v]), so they are
stored as they are. The layers of multi-token prediction aren't mapped: leave them out with --allow.
"""

from __future__ import annotations

from openclaw_core.checkpoint.families import dense, moe
from openclaw_core.checkpoint.mapping import Rule
from openclaw_core.models.architecture import Architecture

_HF = "model.layers.{layer}."
_MEGATRON = "decoder.layers.{layer}."
_SELF, _ATTN = _MEGATRON + "self_attention.", _HF + "self_attn."
_OUTER = tuple(rule for rule in dense.RULES if "layers" not in rule.megatron)


def compressed(arch: Architecture) -> bool:
    """Whether queries pass through a narrow layer too."""
    return arch.mla is not None and arch.mla.q_rank > 0


RULES = (
    *_OUTER,
    Rule(
        _MEGATRON + "input_layernorm.weight",
        {_HF + "input_layernorm.weight": ("h",)},
        aliases=(_SELF + "linear_qkv.layer_norm_weight",),
    ),
    Rule(_SELF + "linear_q_proj.weight", {_ATTN + "q_proj.weight": ("qh", "h")}, when=lambda arch: not compressed(arch)),
    Rule(_SELF + "linear_q_down_proj.weight", {_ATTN + "q_a_proj.weight": ("ql", "h")}, when=compressed),
    Rule(
        _SELF + "linear_q_up_proj.layer_norm_weight",
        {_ATTN + "q_a_layernorm.weight": ("ql",)},
        when=compressed,
        aliases=(_SELF + "q_layernorm.weight",),
    ),
    Rule(_SELF + "linear_q_up_proj.weight", {_ATTN + "q_b_proj.weight": ("qh", "ql")}, when=compressed),
    Rule(_SELF + "linear_kv_down_proj.weight", {_ATTN + "kv_a_proj_with_mqa.weight": ("kr", "h")}),
    Rule(
        _SELF + "linear_kv_up_proj.layer_norm_weight",
        {_ATTN + "kv_a_layernorm.weight": ("kl",)},
        aliases=(_SELF + "kv_layernorm.weight",),
    ),
    Rule(_SELF + "linear_kv_up_proj.weight", {_ATTN + "kv_b_proj.weight": ("kh", "kl")}),
    Rule(_SELF + "linear_proj.weight", {_ATTN + "o_proj.weight": ("h", "oh")}),
    *moe.DENSE_LAYERS,
    *moe.EXPERTS,
    Rule(_MEGATRON + "mlp.router.expert_bias", {_HF + "mlp.gate.e_score_correction_bias": ("e",)}, layers=moe.sparse),
    *moe.shared("shared_experts"),
)
EXTRA_STATES = (
    "self_attention.core_attention",
    "self_attention.linear_proj",
    "self_attention.linear_q_down_proj",
    "self_attention.linear_q_up_proj",
    "self_attention.linear_kv_down_proj",
    "self_attention.linear_kv_up_proj",
    "mlp.experts.experts.{expert}.linear_fc1",
    "mlp.experts.experts.{expert}.linear_fc2",
    "mlp.shared_experts.linear_fc1",
    "mlp.shared_experts.linear_fc2",
)
