"""Numbers at their limits: extreme and masked logits at every precision, and replies of very different lengths."""

from __future__ import annotations

import math
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openclaw_core.config.schema import Loss
from openclaw_core.loss.logprobs import gather_logprobs
from openclaw_core.types import SampleKind

cases = runpy.run_path(str(Path(__file__).with_name("cases.py")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masked_and_extreme_logits_at_every_precision(dtype):
    """Logits of +-1e4 and -inf (what a mask leaves): log-probs and gradient against float64."""
    torch.manual_seed(0)
    logits = (torch.randn(12, 40) * 3).to(dtype)
    logits[0] *= 1e3
    logits[1, 5], logits[2, 5] = 1e4, -1e4
    logits[3] += 1e4 if dtype != torch.float16 else 6e3
    logits[4, 1:] = -math.inf
    logits[5, ::2] = -math.inf
    logits[6] = -1e4
    ids = logits.float().topk(4, dim=1).indices
    # Of the fifth row one id alone is possible.
    ids[4] = 0
    exact = logits.double().requires_grad_(True)
    expected = torch.log_softmax(exact, -1).gather(1, ids)
    weights = torch.randn(12, 4)
    (expected * weights).sum().backward()
    leaf = logits.clone().requires_grad_(True)
    got = gather_logprobs(leaf * 1, ids, cases["whole"](40))
    (got * weights).sum().backward()
    torch.testing.assert_close(got.double(), expected, atol=2e-6, rtol=2e-6)
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(leaf.grad.double(), exact.grad.nan_to_num(0), atol=4 * rounding, rtol=rounding)


@pytest.mark.parametrize("subset", ["student", "teacher", "overlap"])
def test_replies_of_very_different_lengths_share_a_micro_batch(subset):
    """One token beside hundreds, K_i from 1 to 3: each sample's part is what it is alone."""
    parts = []
    for seed, length in enumerate((1, 300, 2, 37)):
        part = cases["random_parts"](seed, vocab=30, count=1, longest=1)[0]
        times = -(-length // len(part.tokens))
        rng = torch.Generator().manual_seed(seed)
        old = torch.randn(length, 30, generator=rng)
        parts.append(
            replace(
                part,
                current=old + torch.randn(length, 30, generator=rng) * 0.3,
                old=old,
                teacher=old + torch.randn(1 + seed % 3, length, 30, generator=rng),
                tokens=part.tokens.repeat(times)[:length],
                mask=(torch.rand(length, generator=rng) < 0.7).float().index_fill(0, torch.tensor([0]), 1.0),
                advantages=torch.full((length,), -1.0),
                spans=None,
                kind=SampleKind.OPD_RL,
            )
        )
    cfg = Loss(subset=subset, k=5)
    together = cases["run"](parts, cfg)
    for i, part in enumerate(parts):
        alone = cases["run"]([part], cfg)
        assert together.out.sample_losses["total"][i].item() == pytest.approx(alone.out.loss.item(), abs=1e-6)
        torch.testing.assert_close(together.grads[i], alone.grads[0], atol=1e-8, rtol=1e-5)
