"""Mixtures of experts: Qwen3 MoE, Qwen3-VL MoE (all experts of a layer in one tensor, transposed), and Qwen2 MoE (a shared
expert with its gate, biases on q, k, v).

megatron stacks experts on an axis of their own behind the layers, whether it runs them one by one (SequentialMLP) or grouped
(TEGroupedMLP, GroupedMLP). With Transformer Engine their norm stands apart, as no linear layer follows it; megatron's local
layers call it by the dense layers' name all the same.
"""

from __future__ import annotations

from openclaw_core.checkpoint.families import dense
from openclaw_core.checkpoint.kinds import GatedMlp, GatedTurned, Turned
from openclaw_core.checkpoint.mapping import Rule
from openclaw_core.models.architecture import Architecture

_HF = "model.layers.{layer}."
_MEGATRON = "decoder.layers.{layer}."
_ATTENTION = tuple(rule for rule in dense.RULES if "mlp" not in rule.megatron)


def sparse(arch: Architecture) -> tuple[int, ...]:
    """Layers with experts."""
    return arch.sparse_layers


def plain(arch: Architecture) -> tuple[int, ...]:
    """Layers with one MLP."""
    return arch.dense_layers


DENSE_LAYERS = (
    Rule(
        _MEGATRON + "mlp.linear_fc1.layer_norm_weight",
        {_HF + "post_attention_layernorm.weight": ("h",)},
        aliases=(_MEGATRON + "pre_mlp_layernorm.weight",),
        layers=plain,
        when=lambda arch: bool(arch.dense_layers),
    ),
    Rule(
        _MEGATRON + "mlp.linear_fc1.weight",
        {_HF + "mlp.gate_proj.weight": ("f", "h"), _HF + "mlp.up_proj.weight": ("f", "h")},
        GatedMlp(),
        layers=plain,
        when=lambda arch: bool(arch.dense_layers),
    ),
    Rule(
        _MEGATRON + "mlp.linear_fc2.weight",
        {_HF + "mlp.down_proj.weight": ("h", "f")},
        layers=plain,
        when=lambda arch: bool(arch.dense_layers),
    ),
)
ROUTER = (
    Rule(
        _MEGATRON + "pre_mlp_layernorm.weight",
        {_HF + "post_attention_layernorm.weight": ("h",)},
        layers=sparse,
        aliases=(_MEGATRON + "mlp.linear_fc1.layer_norm_weight",),
    ),
    Rule(_MEGATRON + "mlp.router.weight", {_HF + "mlp.gate.weight": ("e", "h")}, layers=sparse),
)
EXPERTS = (
    *ROUTER,
    Rule(
        _MEGATRON + "mlp.experts.experts.{expert}.linear_fc1.weight",
        {_HF + f"mlp.experts.{{expert}}.{part}_proj.weight": ("m", "h") for part in ("gate", "up")},
        GatedMlp(),
        layers=sparse,
    ),
    Rule(
        _MEGATRON + "mlp.experts.experts.{expert}.linear_fc2.weight",
        {_HF + "mlp.experts.{expert}.down_proj.weight": ("h", "m")},
        layers=sparse,
    ),
)
FUSED_EXPERTS = (
    *ROUTER,
    Rule(
        _MEGATRON + "mlp.experts.experts.{expert}.linear_fc1.weight",
        {_HF + "mlp.experts.gate_up_proj": ("e", "h", "2m")},
        GatedTurned(),
        layers=sparse,
    ),
    Rule(
        _MEGATRON + "mlp.experts.experts.{expert}.linear_fc2.weight",
        {_HF + "mlp.experts.down_proj": ("e", "m", "h")},
        Turned(),
        layers=sparse,
    ),
)


def shared(name: str) -> tuple[Rule, ...]:
    """The shared experts, which Hugging Face calls by this name."""
    return (
        Rule(
            _MEGATRON + "mlp.shared_experts.linear_fc1.weight",
            {_HF + f"mlp.{name}.{part}_proj.weight": ("s", "h") for part in ("gate", "up")},
            GatedMlp(),
            layers=sparse,
            when=lambda arch: bool(arch.shared_ffn),
        ),
        Rule(
            _MEGATRON + "mlp.shared_experts.linear_fc2.weight",
            {_HF + f"mlp.{name}.down_proj.weight": ("h", "s")},
            layers=sparse,
            when=lambda arch: bool(arch.shared_ffn),
        ),
    )


QWEN3 = (*_ATTENTION, *DENSE_LAYERS, *EXPERTS)
QWEN3_VL = (*_ATTENTION, *DENSE_LAYERS, *FUSED_EXPERTS)
QWEN2 = (
    *QWEN3,
    *shared("shared_expert"),
    Rule(
        _MEGATRON + "mlp.shared_experts.gate_weight",
        {_HF + "mlp.shared_expert_gate.weight": ("1", "h")},
        layers=sparse,
    ),
)
EXTRA_STATES = (
    "self_attention.core_attention",
    "self_attention.linear_qkv",
    "self_attention.linear_proj",
    "mlp.experts.experts.{expert}.linear_fc1",
    "mlp.experts.experts.{expert}.linear_fc2",
)
