"""Whether the kernels agree with the plain path here: on this device, with this Triton, for this dtype.

A small problem with every term goes both ways, once a process; it draws from a generator of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openclaw_core.config.schema import Loss
from openclaw_core.loss import kernels
from openclaw_core.loss.logprobs import gather_with_entropy, row_stats
from openclaw_core.loss.objective import objective
from openclaw_core.loss.rows import Rows
from openclaw_core.loss.targets import OpdTargets, Targets
from openclaw_core.loss.tensors import masked_softmax
from openclaw_core.trial import agrees
from openclaw_core.vocab import VocabShard

COUNT, PLACES, VOCAB, PADDED = 6, 4, 20_001, 20_032
EVERYTHING = Loss(k=PLACES, tail="bin", dual_clip=1.5, entropy_coef=0.1, kl_coef=0.1, temperature=0.8)


def passes(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels agree with the plain path; warns where they don't."""

    def plain() -> dict[str, Tensor]:
        with kernels.disabled():
            return _results(device, dtype)

    otherwise = f"The loss uses its plain path for {dtype} on {device}, for its kernels fail there"
    with torch.enable_grad():
        return agrees(lambda: _results(device, dtype), plain, dtype, otherwise)


def _results(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(COUNT, PADDED, generator=generator) * 3).to(dtype).to(device)
    shard = VocabShard.whole(VOCAB, PADDED)
    ids = torch.randint(0, VOCAB, (COUNT, PLACES + 1), generator=generator).to(device)
    # The sampled id is in the support of some rows.
    ids[::2, -1] = ids[::2, 0]
    stats = row_stats(logits, shard, sampled_ids=ids[:, -1], k=PLACES, gather_ids=ids, temperature=EVERYTHING.temperature)
    results = {"top ids": stats.top_ids, "log-probs": stats.top_logprobs, "entropies": stats.entropy}
    rows = _rows(ids[:, -1])
    for cfg in (Loss(k=PLACES), EVERYTHING):
        targets = _targets(ids, stats.gathered, cfg, generator)
        leaf = logits.clone().requires_grad_(True)
        out = objective(leaf, rows, targets, cfg, shard)
        out.loss.backward()
        results |= {f"losses, tail {cfg.tail},": out.loss.detach(), f"gradients, tail {cfg.tail},": leaf.grad}
    leaf = logits.clone().requires_grad_(True)
    logprobs, entropy = gather_with_entropy(leaf, ids, shard)
    (logprobs.sum() + entropy.sum()).backward()
    return results | {"gradients of log-probs": leaf.grad}


def _rows(sampled: Tensor) -> Rows:
    whole = torch.arange(COUNT, device=sampled.device)
    weight = torch.full((COUNT,), 1 / COUNT, device=sampled.device)
    weight[-1] = 0
    one = torch.zeros_like(whole)
    return Rows(("s",), (COUNT,), 1, sampled, weight, weight.cos(), weight, one, whole, one, one, one + 1, one == 0)


def _targets(ids: Tensor, logprobs: Tensor | None, cfg: Loss, generator: torch.Generator) -> Targets:
    assert logprobs is not None

    def near(x: Tensor) -> Tensor:
        return x + 0.2 * torch.randn(x.shape, generator=generator).to(x)

    bins = PLACES + (cfg.tail == "bin")
    # The rest of the vocabulary, where it has a bin, holds nearly everything.
    padded = torch.nn.functional.pad(logprobs[:, :-1], (0, bins - PLACES), value=-0.1)
    old, told = near(padded), near(padded)
    mask = torch.ones_like(old, dtype=torch.bool)
    mask[1, 0] = False
    weights, differences = masked_softmax(old, mask), told - old
    support = ids[:, :-1].masked_fill(~mask[:, :PLACES], -1)
    zeros = torch.zeros_like(ids[:, 0])
    opd = OpdTargets(
        support, mask, weights, differences, differences * weights, old, told, zeros, zeros[:, None].expand(-1, 1), None
    )
    sampled = near(logprobs[:, -1])
    gather = torch.cat((support, ids[:, -1:]), dim=1)
    return Targets(gather, sampled, sampled, sampled, near(sampled) if cfg.kl_coef else None, opd)
