"""megatron's distributed optimizer over the model, with settings that a checkpoint doesn't override."""

from __future__ import annotations

from typing import Any

import torch

from openclaw_core.config.schema import Optimizer
from openclaw_core.models.megatron.builder import PackedGPT
from openclaw_core.models.megatron.core import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    OptimizerConfig,
    finalize_model_grads,
    get_megatron_optimizer,
    get_standard_config_overrides,
)


def distribute(model: PackedGPT) -> Any:
    """The model inside megatron's data-parallel wrapper, with gradients in fp32."""
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=True,
        overlap_grad_reduce=False,
        overlap_param_gather=False,
        check_for_nan_in_grad=False,
        average_in_collective=False,
    )
    ddp = DistributedDataParallel(config=model.config, ddp_config=config, module=model)
    model.config.no_sync_func = ddp.no_sync
    model.config.finalize_model_grads_func = finalize_model_grads
    return ddp


def make_optimizer(ddp: Any, settings: Optimizer, dtype: torch.dtype) -> Any:
    """megatron's Adam over shards of the data-parallel ranks; norms and biases without weight decay."""
    config = OptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        min_lr=settings.lr,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        adam_eps=settings.eps,
        weight_decay=settings.weight_decay,
        decoupled_weight_decay=True,
        clip_grad=settings.clip_grad,
        use_distributed_optimizer=True,
        overlap_param_gather=False,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        fp16=False,
        log_num_zeros_in_grad=False,
    )
    optimizer = get_megatron_optimizer(config, [ddp], config_overrides=get_standard_config_overrides(config))
    apply_settings(optimizer, settings)
    return optimizer


def apply_settings(optimizer: Any, settings: Optimizer) -> None:
    """Constant learning rate and weight decay into every parameter group; a loaded checkpoint doesn't override them."""
    for group in optimizer.param_groups:
        group["lr"] = settings.lr * group.get("lr_mult", 1.0)
        group["weight_decay"] = settings.weight_decay * group.get("wd_mult", 1.0)
        group["betas"] = (settings.beta1, settings.beta2)
        group["eps"] = settings.eps
