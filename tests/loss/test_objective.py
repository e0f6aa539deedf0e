from __future__ import annotations

import math
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openclaw_core.config.schema import Loss
from openclaw_core.errors import Findings
from openclaw_core.loss.objective import objective
from openclaw_core.types import SampleKind

cases = runpy.run_path(str(Path(__file__).with_name("cases.py")))
run, whole = cases["run"], cases["whole"]


@pytest.fixture
def parts():
    drawn = cases["random_parts"](12, vocab=15, count=3)
    return [replace(part, mask=torch.ones_like(part.mask), kind=SampleKind.OPD_RL) for part in drawn]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_current_logits_are_named_and_teach_nothing(parts, value):
    fine = run(parts, Loss())
    fine.out.check(fine.rows)
    parts[1].current[0, 4] = value
    result = run(parts, Loss(entropy_coef=0.1))
    assert torch.isfinite(result.out.loss)
    assert all(torch.isfinite(grad).all() for grad in result.grads)
    assert not result.grads[1][0].any()
    with pytest.raises(Findings, match="sample s1, response position 0: the current policy's logits hold NaN or Inf"):
        result.out.check(result.rows)


def test_bad_rows_that_are_not_trained_are_nobodys_business(parts):
    parts[1].mask[0] = 0
    parts[1].current[0, 4] = math.nan
    parts[1].old[0, 4] = math.nan
    result = run(parts, Loss())
    result.out.check(result.rows)
    assert all(torch.isfinite(grad).all() for grad in result.grads)
    assert all(math.isfinite(x) for group in result.out.metrics.read().values() for x in group.values())


def test_bad_old_logits_are_named(parts):
    parts[2].old[0, 1] = math.nan
    with pytest.raises(Findings, match="sample s2, response position 0: the old policy's logits"):
        run(parts, Loss())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_reference_is_named(parts, value):
    reference = torch.full((sum(len(part.tokens) for part in parts),), -2.0)
    reference[len(parts[0].tokens)] = value
    with pytest.raises(Findings, match="sample s1, response position 0: the reference's logits"):
        run(parts, Loss(kl_coef=0.1), reference=reference)
    run(parts, Loss(), reference=reference)


def test_a_sampled_id_of_probability_zero_is_named(parts):
    parts[0].old[0, parts[0].tokens[0]] = -math.inf
    with pytest.raises(Findings, match="sample s0, response position 0"):
        run(parts, Loss())


def test_a_teacher_that_excludes_what_the_student_says_needs_the_clip(parts):
    parts[0].teacher[:, 0, parts[0].old[0].argmax()] = -math.inf
    assert torch.isfinite(run(parts, Loss(diff_clip=1.0)).out.loss)
    with pytest.raises(Findings, match=r"set loss\.diff_clip above 0"):
        run(parts, Loss(diff_clip=0.0))


def test_a_weight_that_vanishes_has_no_advantage_whatever_the_difference(parts):
    part = parts[0]
    part.old[0] -= 400
    part.old[0, part.tokens[0]] = part.current[0, part.tokens[0]] = 0
    part.teacher[:, 0] = -math.inf
    part.teacher[:, 0, part.tokens[0]] = 0
    result = run([part], Loss(diff_clip=0.0, k=3))
    assert not result.targets.opd.advantages[0].any()


def test_metrics(parts):
    parts[0] = replace(parts[0], teacher=parts[0].teacher[:1].expand(3, -1, -1))
    parts[1] = replace(parts[1], teacher=parts[1].teacher[:1])
    result = run(parts, Loss(k=4, diff_clip=0.01, selection="token_optimal"))
    told = result.out.metrics.read()["all"]
    assert told["loss/total"] * 3 == pytest.approx(result.out.loss.item(), rel=1e-5)
    assert told["opd/clipped_share"] > 0.9
    assert told["opd/support_size"] == 4
    assert 0 < told["opd/student_mass"] < 1
    assert told["opd/choice_share"] == pytest.approx(sum(len(part.teacher) > 1 for part in parts) / 3)
    assert told["opd/first_share"] + told["opd/k_star_1_share"] + told["opd/k_star_2_share"] == pytest.approx(1)
    assert told["opd/tied_share"] >= 0.5
    assert told["gap/engine_mean"] == pytest.approx(0, abs=1e-5)
    assert set(told) >= {"loss/grpo", "loss/opd", "ratio/mean", "ratio/clipped_share", "batch/entropy", "opd/overlap"}


def test_sample_losses_are_the_parts_of_each_sample(parts):
    result = run(parts, Loss())
    alone = [run([part], Loss()).out.loss.item() for part in parts]
    assert result.out.sample_losses["total"].tolist() == pytest.approx(alone, abs=1e-6)
    assert set(result.out.sample_losses) == {"total", "grpo", "opd"}


def test_ranks_that_hold_some_rows_add_up_to_the_whole(parts):
    cfg = Loss(entropy_coef=0.1)
    result = run(parts, cfg)
    logits = torch.cat([part.current for part in parts])
    even, odd = (torch.arange(start, len(logits), 2) for start in (0, 1))
    total, metrics = 0.0, None
    for index in (even, odd):
        leaf = logits[index].requires_grad_(True)
        out = objective(leaf * 1, result.rows.take(index), result.targets.take(index), cfg, whole(15))
        out.loss.backward()
        total += out.loss.item()
        metrics = out.metrics if metrics is None else metrics + out.metrics
        torch.testing.assert_close(leaf.grad, torch.cat(result.grads)[index], atol=1e-7, rtol=1e-6)
    assert total == pytest.approx(result.out.loss.item(), abs=1e-6)
    assert metrics.read()["all"] == pytest.approx(result.out.metrics.read()["all"], abs=1e-6)


def test_the_kl_term_is_the_divergence_to_the_reference_in_value_and_gradient():
    """Averaged over the old policy, at a current policy that is neither old nor reference."""
    torch.manual_seed(0)
    vocab = 5
    old, ref, current = (torch.randn(vocab, dtype=torch.float64) for _ in range(3))
    leaf = current.clone().requires_grad_(True)
    p, q = torch.log_softmax(leaf, 0), torch.log_softmax(ref, 0)
    expected = (p.exp() * (p - q)).sum()
    (slope,) = torch.autograd.grad(expected, leaf)
    value, gradient = 0.0, torch.zeros(vocab, dtype=torch.float64)
    for token, weight in enumerate(torch.softmax(old, 0).tolist()):
        part = cases["Part"](current[None], old[None], old[None, None], torch.tensor([token]), torch.ones(1), torch.zeros(1))
        result = run([part], Loss(kl_coef=1.0, w_opd=0.0, w_rl=0.0), dtype=torch.float64, reference=q[token][None].detach())
        value += weight * result.out.loss.item()
        gradient += weight * result.grads[0][0]
    assert value == pytest.approx(expected.item())
    torch.testing.assert_close(gradient, slope)
