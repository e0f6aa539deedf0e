"""What the plain path asks of a device: on the meta device nothing can be read back, so whoever waits for a value fails there."""

from __future__ import annotations

import itertools
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from openclaw_core.config.schema import Loss
from openclaw_core.loss import logprobs
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


def test_launches_are_as_many_as_chunks_of_rows_whatever_the_samples(monkeypatch):
    cfg = Loss(tail="bin", entropy_coef=0.1, selection="sequence_optimal")
    monkeypatch.setitem(logprobs.CHUNK, "cuda", 40 * 20)

    def count(number, length):
        return len(step_on_meta(samples(number, length), cfg))

    one, two, four = count(2, 20), count(20, 4), count(40, 4)
    assert one == count(10, 4) == count(2, 4)
    assert four == count(2, 80)
    assert two > one
    assert count(60, 4) - four == four - two
