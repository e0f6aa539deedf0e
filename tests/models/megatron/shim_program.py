"""One rank that tries what megatron-core does without each patch, then with it; writes what happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from openclaw_core.config.schema import Optimizer
from openclaw_core.models.architecture import Architecture
from openclaw_core.models.megatron import core, parallel, shim
from openclaw_core.models.megatron.core import dist_checkpointing, distrib_optimizer, megatron_random
from openclaw_core.models.megatron.parallel import ParallelSizes

ARCH = Architecture(
    family="qwen3", model_type="qwen3", layers=1, hidden=16, ffn=16, heads=2, kv_heads=2, head_dim=8, vocab=100, qk_norm=True,
    qkv_bias=False, norm_eps=1e-6, rope_theta=1e4, rope_scaling=None, tied=True, max_position=64, dtype="float32",
)  # fmt: skip


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return "works"


def shim_patches(rank: int, ranks: int, folder: Path, meet) -> None:
    found: dict[str, list[str]] = {}

    def add_rng_state() -> None:
        megatron_random.CudaRNGStatesTracker().add("state", 5)
        megatron_random._get_cuda_rng_state()

    tries: list[tuple[Callable[[], None], list[Callable[[], object]]]] = [
        (shim.patch_device, [torch.cuda.current_device, lambda: torch.zeros(1).cuda(), lambda: torch.nn.Linear(1, 1).cuda()]),
        (shim.patch_factories, [lambda: torch.zeros(1, device="cuda"), lambda: torch.tensor([1], device="cuda")]),
        (shim.patch_streams, [torch.cuda.synchronize, torch.cuda.current_stream, torch.cuda.default_stream]),
        (shim.patch_rng, [add_rng_state]),
    ]
    for patch, actions in tries:
        before = [outcome(action) for action in actions]
        patch()
        # Functions of torch.cuda were replaced: look them up again.
        again = [getattr(torch.cuda, a.__name__, a) if a.__module__ == "torch.cuda" else a for a in actions]
        found[patch.__name__] = [*before, *(outcome(action) for action in again)]
    shim._installed = True
    real_resume, shim.patch_resume = shim.patch_resume, lambda: None
    device = parallel.start(meet("shim", 1), ParallelSizes(), seed=1)
    found["patch_tensor_type"] = [outcome(lambda: training(device, torch.bfloat16))]
    shim.patch_tensor_type()
    found["patch_tensor_type"].append(outcome(lambda: training(device, torch.bfloat16)))
    found |= resume(device, folder)
    shim.patch_resume = real_resume
    parallel.stop()
    (folder / "found.json").write_text(json.dumps(found))


def training(device: torch.device, dtype: torch.dtype = torch.float32):
    from openclaw_core.models.megatron.builder import build_model
    from openclaw_core.run.trainer_optimizer import distribute, make_optimizer

    model = build_model(ARCH, ParallelSizes(), dtype, device=device, random_weights=True)
    ddp = distribute(model)
    return model, ddp, make_optimizer(ddp, Optimizer(lr=0.1), dtype)


def step(ddp, optimizer) -> None:
    for parameter in ddp.module.parameters():
        parameter.main_grad.fill_(0.1)
    optimizer.step()


def resume(device: torch.device, folder: Path) -> dict[str, list]:
    metadata = {"distrib_optim_sharding_type": "fully_reshardable"}

    def state(model, optimizer, loading):
        weights = model.sharded_state_dict()
        return {"model": weights, "optimizer": optimizer.sharded_state_dict(weights, is_loading=loading, metadata=metadata)}

    def load():
        model, ddp, optimizer = training(device)
        loaded = dist_checkpointing.load(state(model, optimizer, True), str(folder / "saved"))
        optimizer.load_state_dict(loaded["optimizer"])
        return ddp, optimizer

    def steps_after_one_more() -> list[float]:
        ddp, optimizer = load()
        step(ddp, optimizer)
        return sorted({float(s["step"]) for s in optimizer.optimizer.state.values()})

    found: dict[str, list] = {}
    patched = distrib_optimizer.DistributedOptimizer
    model, ddp, optimizer = training(device)
    found["patch_state_before_first_step"] = [outcome(optimizer.state_dict)]
    shim.patch_state_before_first_step(patched)
    found["patch_state_before_first_step"].append(outcome(optimizer.state_dict))
    step(ddp, optimizer)
    (folder / "saved").mkdir()
    core.dist_checkpointing.save(state(model, optimizer, False), str(folder / "saved"), content_metadata=metadata)
    found["patch_missing_step"] = [outcome(load)]
    shim.patch_missing_step(patched)
    found["patch_missing_step"].append(outcome(load))
    found["patch_shared_step"] = [steps_after_one_more()]
    shim.patch_shared_step(patched)
    found["patch_shared_step"].append(steps_after_one_more())
    return found
