"""The one door to megatron-core (0.16.1 and 0.19.2): every name of it that the project uses, imported here.

On import megatron-core warns about optional packages that nothing here needs; those warnings are left out.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
import warnings


def _stand_in_for_triton() -> None:
    """0.19.2 imports triton, which it doesn't declare, for kernels of mixture-of-experts layers; CPU installs have none."""
    name = "megatron.core.transformer.moe.ops.paged_stash"
    if importlib.util.find_spec("triton") is None and name not in sys.modules:
        module = types.ModuleType(name)
        module.__dict__.update(GLOBAL_BLOCK_SIZE=1024, paged_stash_copy_kernel=None, paged_stash_pop_kernel=None)
        sys.modules[name] = module


_stand_in_for_triton()
logging.getLogger("megatron.core.models.gpt.gpt_model").setLevel(logging.ERROR)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.dist_checkpointing.core import CheckpointingException
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.dist_checkpointing.validation import StrictHandling
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.optimizer import (
        OptimizerConfig,
        distrib_optimizer,
        get_megatron_optimizer,
        get_standard_config_overrides,
    )
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.safe_globals import SAFE_GLOBALS
    from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region
    from megatron.core.tensor_parallel import random as megatron_random
    from megatron.core.tensor_parallel.layers import (
        ColumnParallelLinear,
        RowParallelLinear,
        VocabParallelEmbedding,
        linear_with_grad_accumulation_and_async_allreduce,
    )
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig, multi_latent_attention
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

__all__ = [
    "SAFE_GLOBALS",
    "CheckpointingException",
    "ColumnParallelLinear",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "GPTModel",
    "MLATransformerConfig",
    "MegatronModule",
    "ModuleSpec",
    "OptimizerConfig",
    "PackedSeqParams",
    "RowParallelLinear",
    "StrictHandling",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "VocabParallelEmbedding",
    "copy_to_tensor_model_parallel_region",
    "dist_checkpointing",
    "distrib_optimizer",
    "filesystem_async",
    "finalize_model_grads",
    "gather_from_sequence_parallel_region",
    "get_forward_backward_func",
    "get_gpt_decoder_block_spec",
    "get_gpt_layer_local_spec",
    "get_megatron_optimizer",
    "get_num_layers_to_build",
    "get_standard_config_overrides",
    "linear_with_grad_accumulation_and_async_allreduce",
    "megatron_random",
    "moe_utils",
    "multi_latent_attention",
    "parallel_state",
    "tensor_parallel",
]
