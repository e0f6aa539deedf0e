from __future__ import annotations

import math

import pytest
import torch

from openclaw_core.config.schema import Loss
from openclaw_core.loss.surrogate import surrogate

LIVE = torch.tensor([True])


def at(ratio, advantage, **more):
    logprob = torch.tensor([math.log(ratio)], requires_grad=True)
    found = surrogate(logprob, torch.zeros(1), torch.tensor([advantage]), LIVE, Loss(**more))
    found.loss.sum().backward()
    return found.loss.item(), logprob.grad.item(), found.clipped.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),
        (1.1, 2.0, -2.2, -2.2, False),
        (1.5, 2.0, -2.56, 0.0, True),
        (0.5, 2.0, -1.0, -1.0, False),
        (1.5, -2.0, 3.0, 3.0, False),
        (0.5, -2.0, 1.6, 0.0, True),
        (1.5, 0.0, 0.0, 0.0, False),
    ],
)
def test_clip(ratio, advantage, loss, slope, clipped):
    assert at(ratio, advantage) == (pytest.approx(loss), pytest.approx(slope), clipped)


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    assert at(5.0, -2.0, dual_clip=3.0) == (pytest.approx(6.0), 0.0, True)
    assert at(2.0, -2.0, dual_clip=3.0) == (pytest.approx(4.0), pytest.approx(4.0), False)
    assert at(0.5, 2.0, dual_clip=3.0) == (pytest.approx(-1.0), pytest.approx(-1.0), False)


def test_the_log_ratio_is_bounded():
    old = torch.tensor([-math.inf, -1e5, 0.0])
    new = torch.tensor([0.0, 0.0, -math.inf], requires_grad=True)
    found = surrogate(new, old, torch.tensor([-1.0, -1.0, 1.0]), torch.tensor([True, True, True]), Loss())
    assert found.ratio.tolist() == pytest.approx([math.exp(20), math.exp(20), math.exp(-20)])
    found.loss.sum().backward()
    assert new.grad.tolist() == [0.0, 0.0, 0.0]


def test_places_that_are_not_live_may_hold_anything():
    bad = torch.tensor([math.nan, math.inf, -math.inf])
    new = bad.clone().requires_grad_(True)
    found = surrogate(new, bad, bad, torch.zeros(3, dtype=torch.bool), Loss(dual_clip=2.0))
    found.loss.sum().backward()
    assert found.loss.tolist() == [0.0, 0.0, 0.0]
    assert new.grad.tolist() == [0.0, 0.0, 0.0]
