"""Dense decoders with gated MLPs: Qwen3 (norms on q and k), Qwen2 and Qwen2.5 (biases on q, k, v), Llama 3 (neither)."""

from __future__ import annotations

from openclaw_core.checkpoint.kinds import GatedMlp, PerGroupQkv, Vocabulary
from openclaw_core.checkpoint.mapping import Rule

_HF = "model.layers.{layer}."
_MEGATRON = "decoder.layers.{layer}."

RULES = (
    Rule("embedding.word_embeddings.weight", {"model.embed_tokens.weight": ("v", "h")}, Vocabulary()),
    Rule(
        _MEGATRON + "self_attention.linear_qkv.layer_norm_weight",
        {_HF + "input_layernorm.weight": ("h",)},
        aliases=(_MEGATRON + "input_layernorm.weight",),
    ),
    Rule(
        _MEGATRON + "self_attention.linear_qkv.weight",
        {_HF + f"self_attn.{part}_proj.weight": (rows, "h") for part, rows in (("q", "q"), ("k", "kv"), ("v", "kv"))},
        PerGroupQkv(),
    ),
    Rule(
        _MEGATRON + "self_attention.linear_qkv.bias",
        {_HF + f"self_attn.{part}_proj.bias": (rows,) for part, rows in (("q", "q"), ("k", "kv"), ("v", "kv"))},
        PerGroupQkv(),
        when=lambda arch: arch.qkv_bias,
    ),
    Rule(
        _MEGATRON + "self_attention.q_layernorm.weight", {_HF + "self_attn.q_norm.weight": ("d",)}, when=lambda arch: arch.qk_norm
    ),
    Rule(
        _MEGATRON + "self_attention.k_layernorm.weight", {_HF + "self_attn.k_norm.weight": ("d",)}, when=lambda arch: arch.qk_norm
    ),
    Rule(_MEGATRON + "self_attention.linear_proj.weight", {_HF + "self_attn.o_proj.weight": ("h", "q")}),
    Rule(
        _MEGATRON + "mlp.linear_fc1.layer_norm_weight",
        {_HF + "post_attention_layernorm.weight": ("h",)},
        aliases=(_MEGATRON + "pre_mlp_layernorm.weight",),
    ),
    Rule(
        _MEGATRON + "mlp.linear_fc1.weight",
        {_HF + "mlp.gate_proj.weight": ("f", "h"), _HF + "mlp.up_proj.weight": ("f", "h")},
        GatedMlp(),
    ),
    Rule(_MEGATRON + "mlp.linear_fc2.weight", {_HF + "mlp.down_proj.weight": ("h", "f")}),
    Rule("decoder.final_layernorm.weight", {"model.norm.weight": ("h",)}),
    Rule("output_layer.weight", {"lm_head.weight": ("v", "h")}, Vocabulary(), when=lambda arch: not arch.tied),
)

EXTRA_STATES = (
    "self_attention.core_attention",
    "self_attention.linear_qkv",
    "self_attention.linear_proj",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
)
