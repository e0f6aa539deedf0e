"""Divergences are files; one that isn't the clipped surrogate, against its formula and finite differences in float64."""

from __future__ import annotations

import importlib
import math
import runpy
import subprocess
import sys
import typing
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from pydantic import ValidationError

from openclaw_core.config.schema import Loss
from openclaw_core.errors import UsageError
from openclaw_core.loss.divergence import DIVERGENCES
from openclaw_core.loss.objective import in_kernel
from openclaw_core.types import SampleKind

cases = runpy.run_path(str(Path(__file__).with_name("cases.py")))
random_parts, run = cases["random_parts"], cases["run"]
CELLS = [
    (subset, rule) for subset in ("student", "teacher", "overlap") for rule in ("shortest", "token_optimal", "signal_optimal")
]
NEW = """
from openclaw_core.loss.divergence import Divergence
from openclaw_core.loss.surrogate import Surrogate, ratio


def term(logprobs, opd, live, cfg):
    log_p, log_q = (x.masked_fill(~live, 0.0) for x in (logprobs, opd.teacher_logprobs))
    return Surrogate(log_q.exp() * (log_q - log_p - 1) + log_p.exp(), ratio(logprobs, opd.old_logprobs, live), clipped=None)


DIVERGENCE = Divergence(term)
"""


def jensen_shannon(p, q):
    m = (p + q) / 2
    return (torch.xlogy(p, p / m) + torch.xlogy(q, q / m)).sum() / 2


def forward_kl(p, q):
    return (torch.xlogy(q, q / p) - q + p).sum()


def bins(logits, ids, tail):
    p = torch.softmax(logits.double(), -1)
    return torch.cat((p[ids], 1 - p[ids].sum().reshape(1))) if tail == "bin" and len(ids) < len(p) else p[ids]


def compare(parts, cfg, formula):
    """Value and gradient of the OPD term at every position; the gradient by finite differences of the formula."""
    result = run(parts, cfg, dtype=torch.float64)
    total = 0.0
    split = (result.rows.split(x) for x in (result.targets.opd.ids, result.targets.opd.k_star))
    for part, grad, supports, k_star in zip(parts, result.grads, *split, strict=True):
        trained = float(part.mask.sum())
        for t in range(len(part.tokens)):
            if not part.mask[t]:
                assert not grad[t].any()
                continue
            ids = supports[t][supports[t] >= 0]
            q = bins(part.teacher[k_star[t], t], ids, cfg.tail)

            def value(logits, ids=ids, q=q):
                return float(formula(bins(logits, ids, cfg.tail), q))

            z, step = part.current[t].double(), 1e-5
            total += value(z) / trained
            for v in range(0, part.vocab, 4):
                move = torch.zeros(part.vocab, dtype=torch.float64)
                move[v] = step
                slope = (value(z + move) - value(z - move)) / (2 * step) / trained
                assert grad[t, v].item() == pytest.approx(slope, abs=1e-8)
    assert result.out.loss.item() == pytest.approx(total, abs=1e-9)
    return result


@pytest.fixture
def written(tmp_path, monkeypatch):
    """forward_kl, a divergence that is one small file somewhere."""
    (tmp_path / "forward_kl.py").write_text(NEW)
    package = importlib.import_module("openclaw_core.loss.divergences")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "openclaw_core.loss.divergences.forward_kl", raising=False)


@pytest.mark.parametrize("tail", ["none", "bin"])
@pytest.mark.parametrize(("subset", "rule"), CELLS)
def test_jensen_shannon_is_its_formula(subset, rule, tail):
    for seed in (1, 2):
        parts = [replace(part, kind=SampleKind.OPD) for part in random_parts(seed, count=2)]
        cfg = Loss(subset=subset, selection=rule, divergence="jensen_shannon", w_rl=0.0, tail=tail, k=3)
        compare(parts, cfg, jensen_shannon)


@pytest.mark.parametrize("tail", ["none", "bin"])
def test_a_file_is_a_divergence(written, tail):
    assert DIVERGENCES.names() == ("forward_kl", "jensen_shannon", "reverse_kl")
    parts = [replace(part, kind=SampleKind.OPD) for part in random_parts(3, count=2)]
    cfg = Loss(w_rl=0.0, tail=tail, k=3).model_copy(update={"divergence": "forward_kl"})
    compare(parts, cfg, forward_kl)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(CELLS), st.integers(0, 10**6), st.sampled_from(["none", "bin"]))
def test_jensen_shannon_is_bounded_and_zero_only_where_both_agree(cell, seed, tail):
    cfg = Loss(subset=cell[0], selection=cell[1], divergence="jensen_shannon", tail=tail, w_rl=0.0, opd_on_rl_only="anchor")
    parts = random_parts(seed)
    result = run([replace(part, teacher=part.teacher * 30) for part in parts], cfg, dtype=torch.float64)
    assert 0 <= result.out.loss.item() <= math.log(2) * len(parts)
    same = [replace(part, current=part.old, teacher=part.old.expand_as(part.teacher)) for part in parts]
    result = run(same, cfg, dtype=torch.float64)
    assert result.out.loss.item() == pytest.approx(0, abs=1e-12)
    assert all(grad.abs().max() < 1e-9 for grad in result.grads)


def test_a_teacher_that_excludes_an_id_needs_no_clip():
    part = replace(random_parts(4, count=1, longest=5)[0], kind=SampleKind.OPD)
    part = replace(part, mask=torch.ones_like(part.mask), teacher=part.teacher.clone())
    part.teacher[:, 0, part.old[0].argmax()] = -math.inf
    compare([part], Loss(divergence="jensen_shannon", diff_clip=0.0, w_rl=0.0, k=3, tail="bin"), jensen_shannon)


def test_what_is_not_clipped_has_no_metric_of_clipping():
    parts = [replace(part, kind=SampleKind.OPD_RL, mask=torch.ones_like(part.mask)) for part in random_parts(5)]
    told = run(parts, Loss(divergence="jensen_shannon")).out.metrics.read()["all"]
    assert {"loss/opd", "ratio/opd_mean", "ratio/clipped_share", "opd/overlap"} <= told.keys()
    assert not {"ratio/opd_clipped_share", "opd/clipped_share", "opd/signal"} & told.keys()


def test_the_kernel_takes_the_surrogate_only():
    assert in_kernel(Loss())
    assert not in_kernel(Loss(divergence="jensen_shannon"))
    assert in_kernel(Loss(divergence="jensen_shannon", w_opd=0.0))


def test_names_are_the_files():
    literal = Loss.model_fields["divergence"].annotation
    assert sorted(typing.get_args(literal)) == list(DIVERGENCES.names())
    with pytest.raises(ValidationError, match="reverse_kl"):
        Loss(divergence="jensen")
    with pytest.raises(UsageError, match="did you mean 'jensen_shannon'"):
        DIVERGENCES.get("jensen_shanon")


def test_divergences_are_read_without_torch():
    program = (
        "import sys; from openclaw_core.loss.divergence import DIVERGENCES\n"
        "for name in DIVERGENCES.names(): DIVERGENCES.get(name)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
