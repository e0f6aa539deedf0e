"""One tensor-parallel rank of compare_logits: python -m openclaw_core.checkpoint.logits_rank WORK RANK WORLD."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.builder import build_model
from openclaw_core.models.megatron.packing import SequenceIds, make_pack
from openclaw_core.models.megatron.parallel import ParallelSizes, Rendezvous
from openclaw_core.models.megatron.weights import load_torch_dist


def main(work: Path, rank: int, world: int) -> None:
    """Loads this rank's shard of the checkpoint in fp32 and saves its columns of every text's logits."""
    job = json.loads((work / "job.json").read_text())
    device = parallel.start(_meet(work, rank, world), ParallelSizes(tensor=world), seed=0)
    model = build_model(
        architecture_from_hf(job["hf"]), ParallelSizes(tensor=world), torch.float32, device=device, trainable=False
    )
    load_torch_dist(model, Path(job["torch_dist"]))
    found = []
    with torch.no_grad():
        for ids in job["ids"]:
            found.append(model(make_pack([SequenceIds(ids[:1], ids[1:])], device)).cpu())
    torch.save(found, work / f"logits{rank}.pt")
    parallel.stop()


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
