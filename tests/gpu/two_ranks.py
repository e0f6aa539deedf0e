"""One of two ranks, each with a GPU of its own; run by test_two_gpus.py: two_ranks.py RANK FOLDER [BACKEND].

Compares with one rank: old pass and objective with the vocabulary on both, the objective with the rows on both, and a step
of the trainer at each way to share a model or a batch. FOLDER holds a tiny model in hf; BACKEND gloo runs it all on CPUs.
"""

from __future__ import annotations

import math
import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from openclaw_core.config.schema import Loss, Train
from openclaw_core.loss.logprobs import row_stats
from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.megatron.parallel import ParallelSizes, Rendezvous, host
from openclaw_core.run.trainer import Trainer
from openclaw_core.vocab import VocabShard

TESTS = Path(__file__).parents[1]
cases = runpy.run_path(str(TESTS / "loss" / "cases.py"))
shards = runpy.run_path(str(TESTS / "loss" / "shards.py"))
program = runpy.run_path(str(TESTS / "run" / "program.py"))
Meet = runpy.run_path(str(TESTS / "worlds.py"))["Meet"]
RANKS, VOCAB = 2, 20_011
# Even; the second rank with few real columns; with none.
SIZES = (10_016, 20_000, 20_096)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
CONFIGS = (
    Loss(opd_on_rl_only="anchor"),
    Loss(subset="teacher", k=20, opd_on_rl_only="anchor"),
    Loss(subset="overlap", k=64, tail="bin", entropy_coef=0.05, dual_clip=1.3, temperature=0.7, opd_on_rl_only="anchor"),
)


def old_pass(rank: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(1)
    logits = torch.randn(9, VOCAB).mul(3).mul(4).round().div(4).to(dtype).to(device)
    ids = torch.randint(0, VOCAB, (9, 6), device=device)
    keys = {"sampled_ids": ids[:, 0], "k": 64, "gather_ids": ids, "sampling_temperature": 0.6}
    alone = row_stats(logits, VocabShard.whole(VOCAB), **keys)
    shard = VocabShard(rank * size, size, VOCAB, dist.group.WORLD)
    shared = row_stats(cases["columns"](logits.cpu(), shard).to(device), shard, **keys)
    assert torch.equal(shared.top_ids, alone.top_ids)
    for name in ("lse", "entropy", "sampled_logprobs", "sampling_logprobs", "top_logprobs", "gathered"):
        torch.testing.assert_close(getattr(shared, name), getattr(alone, name), atol=1e-5, rtol=1e-5)


def training(rank: int, size: int, dtype: torch.dtype, device: torch.device, cfg: Loss) -> None:
    parts = cases["random_parts"](7, vocab=VOCAB, count=3, longest=4)
    alone = cases["run"](parts, cfg, dtype=dtype, device=device)
    shard = VocabShard(rank * size, size, VOCAB, dist.group.WORLD)
    shared = cases["run"](parts, cfg, shard, dtype=dtype, device=device)
    torch.testing.assert_close(shared.out.loss, alone.out.loss, atol=1e-5, rtol=1e-5)
    for mine, whole in zip(shared.grads, alone.grads, strict=True):
        expected = whole[:, shard.start : shard.start + shard.real]
        torch.testing.assert_close(mine, expected, atol=1e-6, rtol=TOLERANCE[dtype])


def one_step(folder: Path, meeting: Rendezvous, sizes: ParallelSizes, budget: int, output_layer: str = "whole") -> dict:
    trainer = Trainer(
        architecture_from_hf(folder / "hf"),
        folder / "hf",
        sizes,
        meeting,
        loss=program["LOSS"],
        optimizer=program["OPTIMIZER"],
        train=Train(dtype="fp32", recompute=True, max_tokens_per_device=budget, seed=3, output_layer=output_layer),
    )
    samples = program["make_samples"]()
    report = program["one_step"](trainer, samples, program["make_scores"](samples))
    trainer.close()
    return report


def steps(rank: int, folder: Path) -> None:
    alone = one_step(folder, host(1), ParallelSizes(), 40)
    # A few rows of logits each.
    program["fused_linear"].CHUNK_BYTES = 4096
    layouts = {name: (world, (sizes, budget)) for name, (world, sizes, budget) in program["LAYOUTS"].items()}
    layouts |= {name: (world, (sizes, 40 // sizes.context, "chunked")) for name, (world, sizes) in program["CHUNKED"].items()}
    for name, (world, how) in layouts.items():
        if world == RANKS:
            got = one_step(folder, Meet(rank, folder)(name, RANKS), *how)
            values = ("grad_norm", "loss") if rank == 0 else ("grad_norm",)
            for value in values:
                assert math.isclose(got[value], alone[value], rel_tol=1e-4, abs_tol=1e-5), (name, value, got[value], alone[value])


def main(rank: int, folder: Path, backend: str = "nccl") -> None:
    # Each process sees a GPU of its own.
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Multicast between GPUs can be withheld from a machine; the loss gains nothing from it.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS)
    for dtype in TOLERANCE:
        for size in SIZES:
            old_pass(rank, size, dtype, device)
            for cfg in CONFIGS:
                training(rank, size, dtype, device, cfg)
    shards["context"](rank, RANKS, device)
    dist.barrier()
    dist.destroy_process_group()
    steps(rank, folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
