"""Ranks that load converted mixtures of experts with megatron itself, compute logits, and save them in its own ways."""

from __future__ import annotations

import json
import runpy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch

from openclaw_core.models.architecture import Architecture, architecture_from_hf
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.layers import RMSNorm
from openclaw_core.models.megatron.parallel import ParallelSizes

stored = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("stored.py"))))
stand_in = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("grouped_experts.py"))))
TOKENS = 20
GROUPED = "qwen3"
LAYOUTS = {
    "one": {},
    "ep2": {"expert_model_parallel_size": 2},
    "tp2": {"tensor_model_parallel_size": 2},
    "pp2": {"pipeline_model_parallel_size": 2},
}


class Attention(torch.nn.Module):
    """Causal attention whose values may be narrower than its keys; megatron's own for CPUs can't do that."""

    def __init__(self, config, *, softmax_scale, **options) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(self, query, key, value, *rest, **options) -> torch.Tensor:
        """[T, 1, heads, ...] -> [T, 1, heads x v_dim]"""
        heads_first = [x.permute(1, 2, 0, 3) for x in (query, key, value)]
        out = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True, scale=self.scale)
        return out.permute(2, 0, 1, 3).flatten(2)


def load_and_save(rank: int, ranks: int, folder: Path, meet) -> None:
    from megatron.core import parallel_state
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import moe_utils

    multi_latent_attention.HAVE_TE = False
    moe_utils.te_general_gemm = None  # megatron-core 0.16.1 believes in, or leaves undefined, where Transformer Engine is missing
    grouped = stand_in.load()
    for name, sizes in LAYOUTS.items():
        world = 2 if sizes else 1
        if rank >= world:
            continue
        parallel.start(meet(name, world), ParallelSizes(), seed=1)
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(**sizes)
        for kind in json.loads((folder / "kinds.json").read_text()):
            arch = architecture_from_hf(folder / kind)
            model = build(arch, sizes)
            stored.load(model, folder / f"{kind}.td" / "release")
            stored.run(model, lambda model=model: logits(model), TOKENS, folder / f"{kind}.{name}.{rank}.pt")
            stored.save(model, folder / f"{kind}.{name}.saved", {})
            local = build(arch, sizes, local_names=True)
            local.load_state_dict(model.state_dict())
            stored.save(local, folder / f"{kind}.{name}.split", {"singleton_local_shards": True})
            if kind == GROUPED:
                model = build(arch, sizes, experts=grouped)
                stored.load(model, folder / f"{kind}.td" / "release")
                stored.run(model, lambda model=model: logits(model), TOKENS, folder / f"grouped.{name}.{rank}.pt")
                stored.save(model, folder / f"grouped.{name}.saved", {})
                stored.save(model, folder / f"grouped.{name}.split", {"singleton_local_shards": True})
        parallel.stop()


def build(arch: Architecture, sizes: dict[str, int], *, local_names: bool = False, experts=None):
    """A model of megatron's local layers that stores norms under Transformer Engine's names, unless local_names; its experts
    are SequentialMLP or of the specification given."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    common = {
        "num_layers": arch.layers,
        "hidden_size": arch.hidden,
        "ffn_hidden_size": arch.ffn,
        "num_attention_heads": arch.heads,
        "num_query_groups": arch.kv_heads,
        "kv_channels": arch.head_dim,
        "qk_layernorm": arch.qk_norm or arch.mla is not None,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "normalization": "RMSNorm",
        "layernorm_epsilon": arch.norm_eps,
        "add_bias_linear": False,
        "add_qkv_bias": arch.qkv_bias,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "pipeline_dtype": torch.float32,
        **sizes,
        "num_moe_experts": arch.experts,
        "moe_router_topk": arch.experts_per_token,
        "moe_ffn_hidden_size": arch.moe_ffn,
        "moe_shared_expert_intermediate_size": arch.shared_ffn or None,
        "moe_shared_expert_gate": arch.family == "qwen2_moe",
        "moe_token_dispatcher_type": "allgather",
        "moe_router_load_balancing_type": "none",
        "moe_router_pre_softmax": arch.family == "qwen2_moe",
        "moe_layer_freq": [int(layer in arch.sparse_layers) for layer in range(arch.layers)] if arch.dense_layers else 1,
        "params_dtype": torch.float32,
        "gradient_accumulation_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
    }
    if arch.mla is not None:
        latent = {
            "multi_latent_attention": True,
            "q_lora_rank": arch.mla.q_rank or None,
            "kv_lora_rank": arch.mla.kv_rank,
            "qk_head_dim": arch.mla.nope_dim,
            "qk_pos_emb_head_dim": arch.mla.rope_dim,
            "v_head_dim": arch.mla.v_dim,
            "rope_type": "rope",
            "rotary_base": arch.rope_theta,
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_topk_scaling_factor": 2.5,
        }
        config = MLATransformerConfig(**common, **latent)
    else:
        config = TransformerConfig(**common)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", qk_l2_norm=False)
    spec.layer_norm = RMSNorm
    for layer in spec.layer_specs:
        parts = layer.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
        attention = parts.self_attention.submodules
        if arch.mla is not None:
            attention.core_attention = Attention
        # megatron-core 0.19 has functions with arguments where 0.16 has specifications.
        bound = isinstance(parts.mlp, partial)
        inner = parts.mlp.keywords["submodules"] if bound else parts.mlp.submodules
        if experts is not None:
            inner.experts = partial(experts.module, submodules=experts.submodules) if bound else experts
        if not local_names:
            parts.sharded_state_dict_keys_map = fused_names(arch, sparse="experts" in vars(inner))
    model = GPTModel(
        config,
        spec,
        vocab_size=256,
        max_sequence_length=64,
        share_embeddings_and_output_weights=arch.tied,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        rotary_base=int(arch.rope_theta),
    )
    return model.eval().requires_grad_(False)


def fused_names(arch: Architecture, sparse: bool) -> dict[str, str]:
    """Norms that Transformer Engine fuses into the linear layer behind them are stored with it."""
    names = {} if sparse else {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
    if arch.mla is None:
        return names | {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    return names | {
        f"self_attention.{part}_layernorm.": f"self_attention.linear_{part}_up_proj.layer_norm_" for part in ("q", "kv")
    }


def logits(model) -> torch.Tensor:
    """This rank's columns [TOKENS, padded vocabulary / tp], or hidden states [TOKENS, 1, hidden] before the last stage."""
    ids = torch.arange(5, 5 + TOKENS)[None]
    mask = torch.ones(1, 1, TOKENS, TOKENS).tril().logical_not()
    out = model(ids, torch.arange(TOKENS)[None], mask)
    return out[0] if model.post_process else out
