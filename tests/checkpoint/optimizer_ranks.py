"""Ranks that make an optimizer step and save weights and optimizer state together, in every way megatron has."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import torch

from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.builder import build_model
from openclaw_core.models.megatron.parallel import ParallelSizes

stored = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("stored.py"))))
LAYOUTS = {"dp2": ParallelSizes(), "tp2": ParallelSizes(tensor=2), "pp2": ParallelSizes(pipeline=2)}
WAYS = ("fully_reshardable", "dp_reshardable", "dp_zero_gather_scatter", "replicated")


def step_and_save(rank: int, ranks: int, folder: Path, meet) -> None:
    for name, sizes in LAYOUTS.items():
        device = parallel.start(meet(name, ranks), sizes, seed=1)
        model = build_model(architecture_from_hf(folder / "hf"), sizes, torch.bfloat16, device=device)
        for way in json.loads((folder / "ways.json").read_text()):
            stored.load(model, folder / "td" / "release")
            optimizer = _stepped(model, distributed=way != "replicated")
            metadata = {"distrib_optim_sharding_type": way} if way != "replicated" else {}
            state = optimizer.sharded_state_dict(model.sharded_state_dict(), metadata=metadata)
            stored.save(model, folder / f"{name}.{way}", {}, optimizer=state)
        stored.save(model, folder / f"{name}.weights", {})
        parallel.stop()


def _stepped(model, *, distributed: bool):
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=distributed)
    wrapped = DistributedDataParallel(config=model.config, ddp_config=settings, module=model)
    config = OptimizerConfig(optimizer="adam", lr=0.1, bf16=True, use_distributed_optimizer=distributed, clip_grad=0.0)
    optimizer = get_megatron_optimizer(config, [wrapped])
    for parameter in model.parameters():
        parameter.main_grad.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    optimizer.step()
    return optimizer
