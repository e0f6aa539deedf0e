"""What a checkpoint says and what the trainer builds, field by field, before a step is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from openclaw_core.errors import Findings
from openclaw_core.models.architecture import Architecture
from openclaw_core.models.megatron.core import TransformerConfig
from openclaw_core.models.megatron.parallel import ParallelSizes


@dataclass(frozen=True, slots=True)
class Field:
    """One setting of megatron's: what it must be, who says so (checkpoint or config), and what the trainer has."""

    name: str
    origin: str
    wanted: Any
    built: Any

    @property
    def same(self) -> bool:
        return bool(self.wanted == self.built)


def compare_provider(
    config: TransformerConfig, arch: Architecture, sizes: ParallelSizes, dtype: torch.dtype, recompute: bool
) -> tuple[Field, ...]:
    """Every field that decides numbers: those of the checkpoint, and those that must come from our config in every mode."""
    checkpoint = {
        "num_layers": arch.layers,
        "hidden_size": arch.hidden,
        "ffn_hidden_size": arch.ffn,
        "num_attention_heads": arch.heads,
        "num_query_groups": arch.kv_heads,
        "kv_channels": arch.head_dim,
        "qk_layernorm": arch.qk_norm,
        "add_qkv_bias": arch.qkv_bias,
        "add_bias_linear": False,
        "layernorm_epsilon": arch.norm_eps,
        "normalization": "RMSNorm",
        "layernorm_zero_centered_gamma": False,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "num_moe_experts": arch.experts or None,
        "rotary_interleaved": False,
    }
    ours = {
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True,
        "apply_query_key_layer_scaling": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "params_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "recompute_granularity": "full" if recompute else None,
        "recompute_method": "uniform" if recompute else None,
        "recompute_num_layers": 1 if recompute else None,
        "tensor_model_parallel_size": sizes.tensor,
        "pipeline_model_parallel_size": sizes.pipeline,
        "context_parallel_size": sizes.context,
        "sequence_parallel": sizes.sequence_parallel and sizes.tensor > 1,
    }
    return tuple(
        Field(name, origin, wanted, getattr(config, name))
        for origin, fields in (("checkpoint", checkpoint), ("config", ours))
        for name, wanted in fields.items()
    )


def check_provider(
    config: TransformerConfig, arch: Architecture, sizes: ParallelSizes, dtype: torch.dtype, recompute: bool
) -> None:
    """Raises Findings naming every field in which the trainer differs from the checkpoint or from our config."""
    wrong = [
        (f"{one.name}: the {one.origin} says {one.wanted!r}, the trainer builds {one.built!r}.", "")
        for one in compare_provider(config, arch, sizes, dtype, recompute)
        if not one.same
    ]
    if wrong:
        raise Findings("The trainer would build another model than the checkpoint's.", wrong)
