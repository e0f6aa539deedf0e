"""One tensor-parallel rank of compare_logits: python -m openclaw_core.checkpoint.logits_rank WORK RANK WORLD."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from openclaw_core.checkpoint.logits import round_to
from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.hf_config import read_config, text_config
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.builder import PackedGPT, build_model
from openclaw_core.models.megatron.core import GPTModel
from openclaw_core.models.megatron.packing import SequenceIds, make_pack
from openclaw_core.models.megatron.parallel import ParallelSizes, Rendezvous
from openclaw_core.models.megatron.reference import reference_logits, reference_model
from openclaw_core.models.megatron.weights import load_state
from openclaw_core.models.routing import routing_of


def main(work: Path, rank: int, world: int) -> None:
    """Loads this rank's shard of the checkpoint in fp32 and saves its columns of every text's logits."""
    job = json.loads((work / "job.json").read_text())
    sizes = ParallelSizes(tensor=world)
    device = parallel.start(_meet(work, rank, world), sizes, seed=0)
    arch = architecture_from_hf(job["hf"])
    model: GPTModel
    if arch.experts:
        routing = routing_of(text_config(read_config(job["hf"])), arch.family)
        model = reference_model(arch, routing, {"tensor_model_parallel_size": world})
    else:
        model = build_model(arch.text_alone(), sizes, torch.float32, device=device, trainable=False)
    load_state(model, Path(job["torch_dist"]))
    round_to(model, job["dtype"])
    with torch.no_grad():
        found = [_logits(model, ids, device) for ids in job["ids"]]
    torch.save(found, work / f"logits{rank}.pt")
    parallel.stop()


def _logits(model: GPTModel, ids: list[int], device: torch.device) -> torch.Tensor:
    """This rank's columns at every place of a text but the last."""
    if isinstance(model, PackedGPT):
        return model(make_pack([SequenceIds(ids[:1], ids[1:])], device)).cpu()
    return reference_logits(model, ids)[:-1]


def _meet(work: Path, rank: int, world: int) -> Rendezvous:
    path = work / "port"
    if rank == 0:
        meeting = parallel.host(world)
        path.with_suffix(".tmp").write_text(str(meeting.port))
        path.with_suffix(".tmp").rename(path)
        return meeting
    while not path.exists():
        time.sleep(0.02)
    return Rendezvous("127.0.0.1", int(path.read_text()), rank, world)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
