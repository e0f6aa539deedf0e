from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

cases = runpy.run_path(str(Path(__file__).with_name("cases.py")))
NAMES, CELLS, load, run = (cases[name] for name in ("NAMES", "CELLS", "load", "run"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("subset", "rule"), CELLS)
def test_golden(name, subset, rule):
    golden = load(name)
    expected = golden.expected[f"{subset}/{rule}"]
    result = run(golden.parts, golden.cfg(subset, rule))
    count = len(golden.parts)
    told = result.out.metrics.read()["all"]
    assert result.out.loss.item() == pytest.approx(expected["loss"], abs=3e-6)
    for key, metric, weight in (("grpo", "loss/grpo", "w_rl"), ("opd", "loss/opd", "w_opd")):
        assert (metric in told) == (golden.config[weight] > 0)
        if metric in told:
            assert told[metric] * count == pytest.approx(expected[key], abs=3e-6)
    if result.targets.opd is not None:
        for key, metric in (("subset_size", "support_size"), ("k_star_mean", "k_star"), ("overlap_at_k_star", "overlap")):
            assert told[f"opd/{metric}"] * count == pytest.approx(expected[key], abs=1e-5)
        assert [k.tolist() for k in result.rows.split(result.targets.opd.k_star)] == expected["k_star"]
    for part, grad in zip(golden.parts, result.grads, strict=True):
        torch.testing.assert_close(grad, part.grads[f"{subset}/{rule}"], atol=1e-6, rtol=1e-5)
