"""What the plain path asks of a device: on the meta device nothing can be read back, so whoever waits for a value fails there."""

from __future__ import annotations

import itertools
import math
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from openclaw_core.config.schema import Loss
from openclaw_core.loss.logprobs import gather_logprobs
from openclaw_core.loss.objective import objective
from openclaw_core.loss.selection import RULES
from openclaw_core.loss.tensors import map_tensors
from openclaw_core.types import SampleKind

cases = runpy.run_path(str(Path(__file__).with_name("cases.py")))
SUBSETS = ("student", "teacher", "overlap")


class Calls(TorchDispatchMode):
    """The names of all operations, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def step_on_meta(parts, cfg):
    """Forward and backward of the loss with everything on the meta device; the operations that it took."""
    result = cases["run"](parts, cfg, reference=torch.zeros(sum(len(p.tokens) for p in parts)))
    rows, targets = result.rows.to("meta"), map_tensors(result.targets, lambda x: x.to("meta"))
    logits = torch.cat([part.current for part in parts]).to("meta").requires_grad_(True)
    with Calls() as calls:
        objective(logits * 1, rows, targets, cfg, cases["whole"](parts[0].vocab)).loss.backward()
    return calls.names


def samples(count, length=4, vocab=20):
    parts = cases["random_parts"](0, vocab=vocab, count=count, longest=1)
    grown = []
    for i, part in enumerate(parts):
        rows = cases["random_parts"](i, vocab=vocab, count=1, longest=1)[0]
        grown.append(
            replace(
                part,
                current=rows.current.expand(length, -1),
                old=rows.old.expand(length, -1),
                teacher=rows.teacher[:1].expand(2, length, -1),
                tokens=rows.tokens.expand(length),
                mask=torch.ones(length),
                advantages=torch.ones(length),
                spans=None,
                kind=list(SampleKind)[i % 2],
            )
        )
    return grown


@pytest.mark.parametrize(("subset", "rule"), list(itertools.product(SUBSETS, RULES.names())))
def test_nothing_in_the_loss_waits_for_the_device(subset, rule):
    parts = cases["random_parts"](3, vocab=15, count=3)
    for more in (
        {},
        {"tail": "bin", "entropy_coef": 0.1, "kl_coef": 0.1, "dual_clip": 2.0, "temperature": 0.7},
        {"w_rl": 0.0, "divergence": "jensen_shannon"},
    ):
        names = step_on_meta(parts, Loss(subset=subset, selection=rule, opd_on_rl_only="anchor", **more))
        assert not [name for name in names if "local_scalar" in name or "nonzero" in name or "masked_select" in name]


def test_the_number_of_launches_grows_with_neither_samples_nor_rows():
    cfg = Loss(tail="bin", entropy_coef=0.1, selection="sequence_optimal")
    counts = {len(step_on_meta(samples(count, length), cfg)) for count, length in ((2, 4), (7, 4), (40, 4), (2, 80))}
    assert len(counts) == 1


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


@pytest.mark.parametrize("subset", SUBSETS)
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
