"""What ranks do with a checkpoint through megatron itself: load it, run the model over its pipeline stages, save it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def load(model, folder: Path) -> None:
    """Every key that the model asks for must be there, extra states included."""
    from megatron.core import dist_checkpointing

    state = dist_checkpointing.load({"model": model.sharded_state_dict()}, str(folder), strict="raise_unexpected")
    missing, unexpected = model.load_state_dict(state["model"], strict=False)
    assert not unexpected, unexpected
    assert not [key for key in missing if "_extra_state" not in key], missing


def save(model, folder: Path, metadata: dict, **beside) -> None:
    """beside: more state, optimizer's for one."""
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        folder.mkdir()
    dist.barrier()
    state = {"model": model.sharded_state_dict(metadata=metadata or None), "iteration": 7, **beside}
    dist_checkpointing.save(state, str(folder))
    dist.barrier()


@torch.no_grad()
def run(model, forward: Callable[[], torch.Tensor], tokens: int, file: Path) -> None:
    """Saves the logits, in the file of the rank that has them; stages hand their hidden states on."""
    rank, stages = dist.get_rank(), model.config.pipeline_model_parallel_size
    if not model.pre_process:
        hidden = torch.empty(tokens, 1, model.config.hidden_size)
        dist.recv(hidden, rank - dist.get_world_size() // stages)
        model.set_input_tensor(hidden)
    out = forward()
    if model.post_process:
        torch.save(out, file)
    else:
        dist.send(out.contiguous(), rank + dist.get_world_size() // stages)
