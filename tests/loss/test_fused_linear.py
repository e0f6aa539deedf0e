from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from openclaw_core.config.schema import Loss
from openclaw_core.loss import fused_linear
from openclaw_core.loss.fused_linear import linear_objective
from openclaw_core.loss.objective import objective
from openclaw_core.vocab import VocabShard

cases = runpy.run_path(str(Path(__file__).with_name("cases.py")))
V, PADDED, H = 23, 26, 6
SHARD = VocabShard.whole(V, PADDED)


@pytest.fixture(params=[{}, {"tail": "bin", "entropy_coef": 0.1, "kl_coef": 0.1}, {"divergence": "jensen_shannon"}])
def problem(request):
    """rows, targets, cfg, hidden [N, H], weight [PADDED, H]; float64."""
    cfg = Loss(opd_on_rl_only="anchor", **request.param)
    parts = cases["random_parts"](4, vocab=V, count=4)
    reference = torch.full((sum(len(part.tokens) for part in parts),), -2.0, dtype=torch.float64)
    result = cases["run"](parts, cfg, dtype=torch.float64, reference=reference)
    torch.manual_seed(0)
    hidden = torch.randn(result.rows.count, H, dtype=torch.float64)
    return result.rows, result.targets, cfg, hidden, torch.randn(PADDED, H, dtype=torch.float64)


def leaves(hidden, weight):
    return hidden.clone().requires_grad_(True), weight.clone().requires_grad_(True)


@pytest.mark.parametrize("chunk_rows", [1, 3, None])
def test_equals_the_layer_and_the_objective(problem, chunk_rows):
    rows, targets, cfg, *given = problem
    ours, theirs = leaves(*given), leaves(*given)
    out = linear_objective(*ours, rows, targets, cfg, SHARD, chunk_rows=chunk_rows)
    want = objective(theirs[0] @ theirs[1].t(), rows, targets, cfg, SHARD, inplace=False)
    (out.loss * 0.3).backward()
    (want.loss * 0.3).backward()
    torch.testing.assert_close(out.loss, want.loss, atol=1e-12, rtol=0)
    torch.testing.assert_close(out.metrics.values, want.metrics.values, atol=1e-10, rtol=0)
    assert torch.equal(out.bad, want.bad)
    for name, losses in want.sample_losses.items():
        torch.testing.assert_close(out.sample_losses[name], losses, atol=1e-12, rtol=0)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-12, rtol=0)


class Made(TorchDispatchMode):
    """The most elements of any tensor that an operation made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        parts = out if isinstance(out, (tuple, list)) else (out,)
        self.elements = max(self.elements, *(x.numel() for x in parts if isinstance(x, torch.Tensor)), 0)
        return out


def test_no_more_logits_exist_than_those_of_a_chunk(problem):
    rows, targets, cfg, *given = problem
    assert rows.count > 6
    with Made() as made:
        out = linear_objective(*leaves(*given), rows, targets, cfg, SHARD, chunk_rows=2)
        out.loss.backward()
    assert made.elements <= PADDED * H < rows.count * PADDED


@pytest.mark.parametrize("problem", [{"divergence": "jensen_shannon"}], indirect=True)
def test_what_the_kernel_does_not_know_takes_the_plain_path(problem, monkeypatch):
    monkeypatch.setattr(fused_linear, "fusable", lambda *_: True)
    test_equals_the_layer_and_the_objective(problem, 3)


@pytest.mark.parametrize("trained", [0, 1])
def test_only_what_is_trained_has_a_gradient(problem, trained):
    rows, targets, cfg, *given = problem
    both, one = leaves(*given), leaves(*given)
    one[1 - trained].requires_grad_(False)
    linear_objective(*both, rows, targets, cfg, SHARD, chunk_rows=2).loss.backward()
    linear_objective(*one, rows, targets, cfg, SHARD, chunk_rows=2).loss.backward()
    assert torch.equal(one[trained].grad, both[trained].grad)
    assert one[1 - trained].grad is None


def test_without_a_graph(problem):
    rows, targets, cfg, *given = problem
    with torch.no_grad():
        out = linear_objective(*leaves(*given), rows, targets, cfg, SHARD)
    assert not out.loss.requires_grad


def test_a_second_backward_pass_is_refused(problem):
    rows, targets, cfg, *given = problem
    out = linear_objective(*leaves(*given), rows, targets, cfg, SHARD)
    out.loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.loss.backward()


def test_float32_keeps_the_digits_of_many_chunks():
    torch.manual_seed(0)
    grads, hidden = torch.randn(64, 2, V).bfloat16(), torch.randn(64, 2, H).bfloat16()
    exact = torch.einsum("crv,crh->vh", grads.double(), hidden.double())
    errors = []
    for dtype in (torch.bfloat16, torch.float32):
        total = torch.zeros(V, H, dtype=dtype)
        for grad, chunk in zip(grads, hidden, strict=True):
            fused_linear._add_product(total, grad, chunk)
        errors.append((total.bfloat16().double() - exact).norm().item())
    assert errors[1] < errors[0] / 2


def test_chunks_are_whole_tiles_under_the_bound():
    rows = fused_linear._chunk_rows(151_936, 2)
    assert rows % fused_linear.ROWS_MULTIPLE == 0
    assert rows * 151_936 * 2 < 1 << 30
    assert fused_linear._chunk_rows(1 << 40, 2) == 1
