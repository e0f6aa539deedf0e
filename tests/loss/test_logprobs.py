from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from openclaw_core.loss import logprobs
from openclaw_core.loss.logprobs import gather_logprobs, gather_with_entropy, row_stats
from openclaw_core.vocab import VocabShard

N, V = 13, 57
WHOLE = VocabShard.whole(V)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that an operation made without borrowing another's storage."""

    def __init__(self, *known):
        super().__init__()
        self.known = {x.untyped_storage().data_ptr() for x in known}
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.known:
                self.elements = max(self.elements, x.numel())
        return out


@pytest.fixture
def logits():
    torch.manual_seed(0)
    return torch.randn(N, V) * 3


@pytest.fixture(params=[1 << 18, 3 * V, 1])
def _chunked(request, monkeypatch):
    monkeypatch.setitem(logprobs.CHUNK, "cpu", request.param)


@pytest.mark.usefixtures("_chunked")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_row_stats(logits, dtype):
    logits = logits.to(dtype)
    ids = torch.randint(0, V, (N, 4))
    ids[3, 2] = -1
    stats = row_stats(logits, WHOLE, sampled_ids=ids[:, 0], temperature=0.7, k=5, gather_ids=ids, sampling_temperature=0.6)
    ell = torch.log_softmax(logits.double() / 0.7, -1)
    want = {
        "lse": torch.logsumexp(logits.double() / 0.7, -1),
        "entropy": -(ell.exp() * ell).sum(-1),
        "sampled_logprobs": ell.gather(1, ids[:, :1])[:, 0],
        "sampling_logprobs": torch.log_softmax(logits.double() / 0.6, -1).gather(1, ids[:, :1])[:, 0],
        "gathered": ell.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -math.inf),
        "top_logprobs": ell.sort(dim=1, descending=True).values[:, :5],
    }
    exact = dtype == torch.float64
    for name, expected in want.items():
        found = getattr(stats, name)
        assert found.dtype == (torch.float64 if exact else torch.float32)
        torch.testing.assert_close(found.double(), expected, atol=1e-12 if exact else 3e-6, rtol=0)
    assert torch.equal(stats.top_ids, logits.sort(dim=1, descending=True, stable=True).indices[:, :5])


@pytest.mark.usefixtures("_chunked")
@pytest.mark.parametrize("k", [1, 4, V - 1, V, V + 9])
def test_top_k_is_exact_with_ties_to_the_lower_id(k):
    torch.manual_seed(1)
    logits = torch.randint(-2, 3, (40, V)).float()
    logits[5] = 1.0
    logits[6, : V - 2] = -math.inf
    logits[7, 10:] = -0.0
    logits[7, :10] = 0.0
    stats = row_stats(logits, WHOLE, sampled_ids=torch.zeros(40, dtype=torch.int64), k=k)
    assert torch.equal(stats.top_ids, logits.sort(dim=1, descending=True, stable=True).indices[:, : min(k, V)])


def test_rows_with_nan_leave_their_neighbours_alone(logits):
    logits[4, 3] = math.nan
    logits[5, 3] = math.inf
    logits[6] = -math.inf
    logits[7, :] = 1.0
    stats = row_stats(logits, WHOLE, sampled_ids=torch.zeros(N, dtype=torch.int64), k=3)
    broken = ~torch.isfinite(stats.lse)
    assert broken.nonzero().flatten().tolist() == [4, 5, 6]
    assert stats.top_ids[7].tolist() == [0, 1, 2]


@pytest.mark.usefixtures("_chunked")
@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("padding", [0, 7])
def test_gradient(logits, inplace, padding):
    leaf = logits.double().requires_grad_(True)
    ids = torch.randint(0, V, (N, 3))
    # The same id twice in a row, and a place without an id.
    ids[2] = 8
    ids[3, 1] = -1
    weights, by_entropy = torch.randn(N, 3).double(), torch.randn(N).double()
    ell = torch.log_softmax(leaf / 0.7, -1)
    loss = (ell.gather(1, ids.clamp(min=0)) * weights)[ids >= 0].sum() - ((ell.exp() * ell).sum(-1) * by_entropy).sum()
    (expected,) = torch.autograd.grad(loss, leaf)

    wide = torch.nn.functional.pad(leaf.detach(), (0, padding), value=1e4).requires_grad_(True)
    shard = VocabShard.whole(V, V + padding)
    found, entropy = gather_with_entropy(wide * 1, ids, shard, temperature=0.7, inplace=inplace)
    assert found[3, 1] == -math.inf
    found_loss = (found * weights)[ids >= 0].sum() + (entropy * by_entropy).sum()
    assert found_loss.item() == pytest.approx(loss.item())
    found_loss.backward()
    torch.testing.assert_close(wide.grad[:, :V], expected, atol=1e-12, rtol=0)
    assert not wide.grad[:, V:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_place_the_gradient_lives_where_the_logits_were(logits, dtype, monkeypatch):
    monkeypatch.setitem(logprobs.CHUNK, "cpu", 2 * V)
    leaf = logits.to(dtype).requires_grad_(True)
    with Largest(leaf) as largest:
        gather_logprobs(leaf, torch.zeros(N, 2, dtype=torch.int64), WHOLE).sum().backward()
    assert leaf.grad.data_ptr() == leaf.data_ptr()
    assert largest.elements <= 2 * V
    with Largest(leaf) as largest:
        row_stats(leaf.detach(), WHOLE, sampled_ids=torch.zeros(N, dtype=torch.int64), k=4)
    assert largest.elements <= 2 * V


def test_out_of_place_the_logits_stay(logits):
    leaf = logits.clone().requires_grad_(True)
    gather_logprobs(leaf, torch.zeros(N, 2, dtype=torch.int64), WHOLE, inplace=False).sum().backward()
    assert torch.equal(leaf.detach(), logits)


def test_in_place_is_refused_where_the_logits_are_still_needed(logits):
    leaf = logits.requires_grad_(True)
    out = gather_logprobs(leaf * 1, torch.zeros(N, 1, dtype=torch.int64), WHOLE)
    out.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    softcapped = torch.tanh(leaf)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gather_logprobs(softcapped, torch.zeros(N, 1, dtype=torch.int64), WHOLE).sum().backward()


def test_entropy_gradient_of_ids_without_probability_is_zero():
    logits = torch.randn(2, V)
    logits[:, ::2] = -math.inf
    leaf = logits.requires_grad_(True)
    _, entropy = gather_with_entropy(leaf * 1, torch.ones(2, 1, dtype=torch.int64), WHOLE)
    (entropy.sum() * 7).backward()
    assert torch.isfinite(leaf.grad).all()
    assert not leaf.grad[:, ::2].any()


def test_no_rows():
    empty = torch.zeros(0, V, requires_grad=True)
    ids = torch.zeros(0, 3, dtype=torch.int64)
    stats = row_stats(empty.detach(), WHOLE, sampled_ids=ids[:, 0], k=4, gather_ids=ids)
    assert stats.top_ids.shape == (0, 4)
    gather_logprobs(empty * 1, ids, WHOLE).sum().backward()
    assert empty.grad.shape == (0, V)
