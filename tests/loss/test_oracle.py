from __future__ import annotations

import runpy
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from openclaw_core.config.schema import Loss
from openclaw_core.types import SampleKind

HERE = Path(__file__)
cases = runpy.run_path(str(HERE.with_name("cases.py")))
oracle = runpy.run_path(str(HERE.with_name("oracle.py")))["oracle"]
random_parts, run = cases["random_parts"], cases["run"]


@st.composite
def configs(draw):
    return Loss(
        subset=draw(st.sampled_from(["student", "teacher", "overlap"])),
        selection=draw(st.sampled_from(["shortest", "token_optimal", "sequence_optimal", "signal_optimal"])),
        tail=draw(st.sampled_from(["none", "bin"])),
        opd_on_rl_only=draw(st.sampled_from(["skip", "anchor"])),
        k=draw(st.integers(1, 6)),
        diff_clip=draw(st.sampled_from([0.0, 0.3, 1.0])),
        dual_clip=draw(st.sampled_from([None, 1.2])),
        temperature=draw(st.sampled_from([0.6, 1.0])),
        w_rl=draw(st.sampled_from([0.0, 1.0, 0.7])),
        w_opd=draw(st.sampled_from([0.0, 1.0, 1.3])),
        entropy_coef=draw(st.sampled_from([0.0, 0.01])),
        kl_coef=draw(st.sampled_from([0.0, 0.1])),
    )


def compare(parts, cfg, reference, dtype, tolerance):
    result = run(parts, cfg, dtype=dtype, reference=reference)
    told = oracle(parts, cfg, reference)
    assert result.out.loss.item() == pytest.approx(told.loss, abs=tolerance, rel=tolerance)
    means = result.out.metrics.read()["all"]
    if cfg.w_opd:
        opd = result.targets.opd
        assert [k.tolist() for k in result.rows.split(opd.k_star)] == told.k_star
        for ids, supports in zip(result.rows.split(opd.ids), told.supports, strict=True):
            assert [set(row.tolist()) - {-1} for row in ids] == supports
    if "loss/grpo" in means:
        live = sum(bool(part.mask.any()) for part in parts)
        assert means["loss/grpo"] * live == pytest.approx(told.grpo, abs=tolerance, rel=tolerance)
    for grad, expected in zip(result.grads, told.grads, strict=True):
        torch.testing.assert_close(grad.double(), expected, atol=tolerance, rtol=tolerance)


@settings(max_examples=60, deadline=None)
@given(configs(), st.integers(0, 10**6), st.booleans())
def test_float64_agrees_exactly(cfg, seed, ties):
    parts = random_parts(seed, ties=ties)
    reference = torch.from_numpy(np.random.default_rng(seed).normal(-2, 0.5, sum(len(p.tokens) for p in parts)))
    compare(parts, cfg, reference, torch.float64, 1e-9)


@settings(max_examples=40, deadline=None)
@given(configs(), st.integers(0, 10**6))
def test_float32_agrees_to_rounding(cfg, seed):
    parts = random_parts(seed)
    reference = torch.from_numpy(np.random.default_rng(seed).normal(-2, 0.5, sum(len(p.tokens) for p in parts))).float()
    compare(parts, cfg, reference, torch.float32, 2e-5)


@pytest.mark.parametrize("side", ["both", "student", "teacher"])
def test_ids_of_probability_zero_are_in_no_support(side):
    # Five ids are left: fewer than K.
    parts = random_parts(5, vocab=13, count=3)
    for part in parts:
        if side != "teacher":
            part.current[:, 3:11] = part.old[:, 3:11] = -torch.inf
        if side != "student":
            part.teacher[:, :, 3:11] = -torch.inf
        part.tokens = part.tokens % 3
    for subset in ("student", "teacher", "overlap"):
        for selection in ("token_optimal", "sequence_optimal"):
            for tail in ("none", "bin"):
                cfg = Loss(subset=subset, selection=selection, k=8, tail=tail, entropy_coef=0.1, opd_on_rl_only="anchor")
                compare(parts, cfg, None, torch.float64, 1e-9)


def test_k_beyond_the_vocabulary_is_the_vocabulary():
    parts = random_parts(7, vocab=5)
    for tail in ("none", "bin"):
        cfg = Loss(subset="student", k=9, tail=tail, opd_on_rl_only="anchor")
        compare(parts, cfg, None, torch.float64, 1e-9)
        assert run(parts, cfg).targets.opd.mask.sum(1).unique().tolist() == [5]


@pytest.mark.parametrize("scale", [1e3, 1e4])
def test_extreme_logits(scale):
    parts = random_parts(11)
    for part in parts:
        part.current, part.old, part.teacher = part.current * scale, part.old * scale, part.teacher * scale
        part.tokens = part.old.argmax(-1)
        part.current = part.old + part.current.sign() * 0.05
    for subset in ("student", "teacher", "overlap"):
        cfg = Loss(subset=subset, k=4, opd_on_rl_only="anchor", entropy_coef=0.1)
        compare(parts, cfg, None, torch.float32, 2e-5 * scale / 1e3)


def test_kinds_are_groups():
    parts = random_parts(3, count=3)
    for part, kind in zip(parts, SampleKind, strict=True):
        part.kind = kind
        part.mask[0] = 1
    told = run(parts, Loss(opd_on_rl_only="skip")).out.metrics.read()
    assert set(told) == {"all", *SampleKind}
    assert "loss/opd" not in told["rl"]
    assert "loss/opd" in told["opd"]
    assert told["all"]["loss/grpo"] == pytest.approx(sum(told[kind]["loss/grpo"] for kind in SampleKind) / 3)
