"""One of two tensor-parallel ranks, each on a GPU of its own; run by test_two_gpus.py: two_ranks.py RANK STORE [BACKEND]."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from openclaw_core.config.schema import Loss
from openclaw_core.loss.logprobs import row_stats
from openclaw_core.loss.vocab import VocabShard

cases = runpy.run_path(str(Path(__file__).parents[1] / "loss" / "cases.py"))
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


def main(rank: int, store: str, backend: str = "nccl") -> None:
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Multicast between GPUs can be withheld from a machine; the loss gains nothing from it.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    dist.init_process_group(backend, store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    for dtype in TOLERANCE:
        for size in SIZES:
            old_pass(rank, size, dtype, device)
            for cfg in CONFIGS:
                training(rank, size, dtype, device, cfg)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
