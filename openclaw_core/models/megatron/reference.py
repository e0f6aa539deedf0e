"""Mixtures of experts of megatron-core's own layers, in fp32 on a CPU: what other trainers build, to compare logits with.

The trainer doesn't use these: it builds dense models (builder.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from openclaw_core.models.architecture import Architecture, padded_vocab
from openclaw_core.models.megatron.core import (
    GPTModel,
    MLATransformerConfig,
    TransformerConfig,
    get_gpt_decoder_block_spec,
    moe_utils,
    multi_latent_attention,
    parallel_state,
)
from openclaw_core.models.megatron.layers import RMSNorm
from openclaw_core.models.megatron.rope import inverse_frequencies
from openclaw_core.models.routing import Routing


class CausalAttention(torch.nn.Module):
    """Causal attention whose values may be narrower than its keys; megatron's own for CPUs can't do that."""

    def __init__(self, config: TransformerConfig, *, softmax_scale: float, **options: Any) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        """[T, 1, heads, ...] -> [T, 1, heads x v_dim]"""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return out.permute(2, 0, 1, 3).flatten(2)


def reference_model(
    arch: Architecture, routing: Routing, sizes: dict[str, int], *, local_names: bool = False, experts: Any = None
) -> GPTModel:
    """This rank's part of a model with experts, in eval mode, its weights random; needs megatron's process groups.

    sizes are megatron's (tensor_model_parallel_size, ...), those left out 1. Norms are stored under Transformer Engine's
    names, unless local_names; experts is a specification to use instead of SequentialMLP's.
    """
    multi_latent_attention.HAVE_TE = False
    moe_utils.te_general_gemm = None  # 0.16.1 believes in, or leaves undefined, where Transformer Engine is missing
    config = _config(arch, routing, sizes)
    model = GPTModel(
        config,
        _spec(config, arch, local_names, experts),
        vocab_size=padded_vocab(arch.vocab, tp=config.tensor_model_parallel_size),
        max_sequence_length=arch.max_position,
        share_embeddings_and_output_weights=arch.tied,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        rotary_base=int(arch.rope_theta),
    )
    if arch.mla is None:
        model.rotary_pos_emb.inv_freq = inverse_frequencies(arch)
    return model.eval().requires_grad_(False)


@torch.no_grad()
def reference_logits(model: GPTModel, ids: list[int]) -> torch.Tensor:
    """This rank's columns [T, padded vocabulary / tp], or hidden states [T, 1, hidden] before the last pipeline stage."""
    tokens = torch.tensor(ids)[None]
    hidden = torch.ones(1, 1, len(ids), len(ids)).tril().logical_not()
    out = model(tokens, torch.arange(len(ids))[None], hidden)
    return out[0] if model.post_process else out


def _config(arch: Architecture, routing: Routing, sizes: dict[str, int]) -> TransformerConfig:
    common = {
        "num_layers": arch.layers,
        "hidden_size": arch.hidden,
        "ffn_hidden_size": arch.ffn,
        "num_attention_heads": arch.heads,
        "num_query_groups": arch.kv_heads,
        "kv_channels": arch.head_dim,
        "qk_layernorm": arch.qk_norm or arch.mla is not None,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "normalization": "RMSNorm",
        "layernorm_epsilon": arch.norm_eps,
        "add_bias_linear": False,
        "add_qkv_bias": arch.qkv_bias,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "pipeline_dtype": torch.float32,
        "params_dtype": torch.float32,
        **sizes,
        "num_moe_experts": arch.experts,
        "moe_router_topk": arch.experts_per_token,
        "moe_ffn_hidden_size": arch.moe_ffn,
        "moe_shared_expert_intermediate_size": arch.shared_ffn or None,
        "moe_shared_expert_gate": arch.family == "qwen2_moe",
        "moe_token_dispatcher_type": "allgather",
        "moe_router_load_balancing_type": "none",
        "moe_router_pre_softmax": not routing.sigmoid and not routing.normalised,
        "moe_router_score_function": "sigmoid" if routing.sigmoid else "softmax",
        "moe_router_enable_expert_bias": routing.sigmoid,
        "moe_router_topk_scaling_factor": routing.scale if routing.sigmoid else None,
        "moe_router_num_groups": routing.groups if routing.groups > 1 else None,
        "moe_router_group_topk": routing.groups_per_token if routing.groups > 1 else None,
        "moe_layer_freq": [int(layer in arch.sparse_layers) for layer in range(arch.layers)] if arch.dense_layers else 1,
        "gradient_accumulation_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
    }
    if arch.mla is None:
        return TransformerConfig(**common)
    latent = {
        "multi_latent_attention": True,
        "q_lora_rank": arch.mla.q_rank or None,
        "kv_lora_rank": arch.mla.kv_rank,
        "qk_head_dim": arch.mla.nope_dim,
        "qk_pos_emb_head_dim": arch.mla.rope_dim,
        "v_head_dim": arch.mla.v_dim,
        "rope_type": "rope",
        "rotary_base": arch.rope_theta,
    }
    return MLATransformerConfig(**common, **latent)


def _spec(config: TransformerConfig, arch: Architecture, local_names: bool, experts: Any) -> Any:
    """megatron's local layers with our norms."""
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", qk_l2_norm=False)
    spec.layer_norm = RMSNorm
    for layer in spec.layer_specs:
        parts = layer.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
        if arch.mla is not None:
            parts.self_attention.submodules.core_attention = CausalAttention
        # megatron-core 0.19 has functions with arguments where 0.16 has specifications.
        bound = isinstance(parts.mlp, partial)
        inner = parts.mlp.keywords["submodules"] if bound else parts.mlp.submodules
        if experts is not None:
            inner.experts = partial(experts.module, submodules=experts.submodules) if bound else experts
        if not local_names:
            parts.sharded_state_dict_keys_map = _fused_names(arch, sparse="experts" in vars(inner))
    return spec


def _fused_names(arch: Architecture, sparse: bool) -> dict[str, str]:
    """Norms that Transformer Engine fuses into the linear layer behind them are stored with it."""
    names = {} if sparse else {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
    if arch.mla is None:
        return names | {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    return names | {
        f"self_attention.{part}_layernorm.": f"self_attention.linear_{part}_up_proj.layer_norm_" for part in ("q", "kv")
    }
