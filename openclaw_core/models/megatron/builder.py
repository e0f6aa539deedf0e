"""From an Architecture to a megatron-core GPTModel that reads packs and answers for response rows only."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F

from openclaw_core.errors import Findings
from openclaw_core.models.architecture import Architecture, padded_vocab
from openclaw_core.models.buildable import buildable
from openclaw_core.models.megatron.core import (
    ColumnParallelLinear,
    GPTModel,
    ModuleSpec,
    RowParallelLinear,
    TransformerBlockSubmodules,
    TransformerConfig,
    VocabParallelEmbedding,
    gather_from_sequence_parallel_region,
    get_gpt_layer_local_spec,
    get_num_layers_to_build,
    linear_with_grad_accumulation_and_async_allreduce,
    parallel_state,
)
from openclaw_core.models.megatron.frozen import freeze
from openclaw_core.models.megatron.layers import PackedAttention, PackedLayout, RMSNorm
from openclaw_core.models.megatron.packing import Pack
from openclaw_core.models.megatron.parallel import ParallelSizes
from openclaw_core.models.megatron.provider import check_provider
from openclaw_core.models.megatron.rope import inverse_frequencies
from openclaw_core.vocab import VocabShard

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def transformer_config(
    arch: Architecture, sizes: ParallelSizes, dtype: torch.dtype, *, recompute: bool, random_weights: bool = False
) -> TransformerConfig:
    """Every setting that decides numbers, stated; nothing is left to a provider's default.

    Raises Findings with all reasons why this architecture can't be built at these parallel sizes.
    """
    _check(arch, sizes)
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=arch.layers,
        hidden_size=arch.hidden,
        ffn_hidden_size=arch.ffn,
        num_attention_heads=arch.heads,
        num_query_groups=arch.kv_heads,
        kv_channels=arch.head_dim,
        qk_layernorm=arch.qk_norm,
        gated_linear_unit=True,
        activation_func=F.silu,
        normalization="RMSNorm",
        layernorm_epsilon=arch.norm_eps,
        layernorm_zero_centered_gamma=False,
        add_bias_linear=False,
        add_qkv_bias=arch.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        apply_query_key_layer_scaling=False,
        rotary_interleaved=False,
        fp32_residual_connection=False,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
        tensor_model_parallel_size=sizes.tensor,
        pipeline_model_parallel_size=sizes.pipeline,
        context_parallel_size=sizes.context,
        sequence_parallel=sizes.sequence_parallel and sizes.tensor > 1,
        # Packs differ in length, so pipeline stages tell each other shapes.
        variable_seq_lengths=sizes.pipeline > 1,
        # Nothing here is a mixture of experts, but variable lengths are refused with the default dispatcher.
        moe_token_dispatcher_type="alltoall",  # noqa: S106
        batch_p2p_comm=True,
        # The loss is a sum over samples; the schedule divides the gradient by the step's number of samples.
        calculate_per_token_loss=True,
        perform_initialization=random_weights,
        use_cpu_initialization=False,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        deallocate_pipeline_outputs=True,
        **(full if recompute else {}),
    )


def _check(arch: Architecture, sizes: ParallelSizes) -> None:
    findings = buildable(arch)
    tp, pp = sizes.tensor, sizes.pipeline
    for name, value in (("heads", arch.heads), ("kv_heads", arch.kv_heads), ("ffn", arch.ffn)):
        if value % tp:
            findings.append((f"tensor_parallel={tp} doesn't divide the model's {name}={value}.", f"Use a divisor of {value}."))
    if arch.layers % pp:
        findings.append((f"pipeline_parallel={pp} doesn't divide {arch.layers} layers.", "Use a divisor of that."))
    if findings:
        raise Findings("The model can't be built.", findings)


class PackedGPT(GPTModel):
    """GPTModel over packs: rotary positions come per row, the output layer runs on response rows only."""

    def __init__(self, config: TransformerConfig, spec: Any, arch: Architecture) -> None:
        super().__init__(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=padded_vocab(arch.vocab, tp=config.tensor_model_parallel_size),
            max_sequence_length=arch.max_position,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            parallel_output=True,
            share_embeddings_and_output_weights=arch.tied,
            position_embedding_type="none",
        )
        self.arch = arch
        self.inverse_frequencies = inverse_frequencies(arch)

    def forward(self, pack: Pack, want: Literal["logits", "rows"] = "logits") -> torch.Tensor:
        """Logits [N, V / tp] of the rows that predict response ids, or those rows themselves [N, hidden].

        Pipeline stages before the last return their hidden states [T or T / tp, 1, hidden].
        """
        embedded = self.embedding(input_ids=pack.input_ids[None], position_ids=None) if self.pre_process else None
        layout = PackedLayout(pack)
        hidden = self.decoder(
            hidden_states=embedded,
            attention_mask=None,
            rotary_pos_emb=self._rotary(pack.positions),
            packed_seq_params=layout,
        )
        if not self.post_process:
            return hidden
        if self.config.sequence_parallel:
            # The output layer's input gradient is summed over the ranks already, so each keeps its slice of it.
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        rows = hidden.squeeze(1).index_select(0, layout.rows)
        return self.logits(rows) if want == "logits" else rows

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [N, hidden] -> this rank's columns of the logits [N, V / tp]."""
        weight = self.output_weight
        if not torch.is_grad_enabled():
            return F.linear(rows, weight)
        return linear_with_grad_accumulation_and_async_allreduce(
            input=rows,
            weight=weight,
            bias=None,
            gradient_accumulation_fusion=False,
            allreduce_dgrad=self.config.tensor_model_parallel_size > 1,
            sequence_parallel=False,
            tp_group=self.pg_collection.tp,
        )

    @property
    def output_weight(self) -> torch.Tensor:
        """The output layer's weight on this rank [V / tp, hidden]."""
        weight: torch.Tensor = self.shared_embedding_or_output_weight() if self.arch.tied else self.output_layer.weight
        return weight

    @property
    def columns(self) -> VocabShard:
        """Which columns of the logits this rank holds."""
        group = self.pg_collection.tp
        size = self.vocab_size // group.size()
        return VocabShard(size * group.rank(), size, self.arch.vocab, group if group.size() > 1 else None)

    def _rotary(self, positions: torch.Tensor) -> torch.Tensor:
        if self.inverse_frequencies.device != positions.device:
            self.inverse_frequencies = self.inverse_frequencies.to(positions.device)
        angles = positions.float()[:, None] * self.inverse_frequencies[None, :]
        return torch.cat((angles, angles), dim=-1)[:, None, None, :]


def build_model(
    arch: Architecture,
    sizes: ParallelSizes,
    dtype: torch.dtype,
    *,
    device: torch.device,
    recompute: bool = False,
    trainable: bool = True,
    random_weights: bool = False,
) -> PackedGPT:
    """This rank's part of the model. Weights are uninitialised (load a checkpoint) unless random_weights.

    With trainable=False parameters need no gradient and the model is in eval mode. Needs parallel.start().
    """
    config = transformer_config(arch, sizes, dtype, recompute=recompute, random_weights=random_weights)
    check_provider(config, arch, sizes, dtype, recompute)
    model = PackedGPT(config, _block_spec(config, arch), arch).to(device)
    _mark_split_parameters(model)
    if not trainable:
        freeze(model)
    return model


def _mark_split_parameters(model: PackedGPT) -> None:
    """megatron marks weights as split only where it initialises them; unmarked, they would count once for all ranks in
    the gradient's norm, so clipping would depend on the tensor-parallel size."""
    for module in model.modules():
        if isinstance(module, ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding) and module.weight is not None:
            module.weight.tensor_model_parallel = True
            module.weight.partition_dim = 1 if isinstance(module, RowParallelLinear) else 0
            module.weight.partition_stride = 1


def _block_spec(config: TransformerConfig, arch: Architecture) -> TransformerBlockSubmodules:
    """megatron's plain layer specification with our norms and attention."""
    spec: ModuleSpec = get_gpt_layer_local_spec(qk_layernorm=arch.qk_norm, normalization="RMSNorm")
    spec.submodules.input_layernorm = RMSNorm
    spec.submodules.pre_mlp_layernorm = RMSNorm
    attention = spec.submodules.self_attention.submodules
    attention.core_attention = PackedAttention
    if arch.qk_norm:
        attention.q_layernorm = RMSNorm
        attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[spec] * get_num_layers_to_build(config), layer_norm=RMSNorm)
