"""The kernels against the plain path in float64, on a GPU; under TRITON_INTERPRET=1 on the CPU, at smaller sizes."""

from __future__ import annotations

import itertools
import math
import os
import runpy
from pathlib import Path

import pytest
import torch

from openclaw_core.config.schema import Loss
from openclaw_core.errors import Findings
from openclaw_core.loss import kernels
from openclaw_core.loss.fused_linear import linear_objective
from openclaw_core.loss.logprobs import gather_with_entropy, row_stats
from openclaw_core.loss.objective import objective
from openclaw_core.loss.tensors import map_tensors
from openclaw_core.vocab import VocabShard

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if CUDA else "cpu"
# Two tiles and a piece of the widest kernel; odd, so that rows of a tensor without padding are not aligned.
VOCAB = 40011 if CUDA else 523
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CELLS = list(itertools.product(("student", "teacher", "overlap"), ("shortest", "token_optimal", "sequence_optimal")))
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs a CUDA device")]
cases = runpy.run_path(str(Path(__file__).parents[1] / "loss" / "cases.py"))


@pytest.fixture(autouse=True)
def _kernels_run():
    torch.manual_seed(0)
    assert kernels.usable(torch.zeros(1, 1, device=DEVICE)), "no kernel would run: is triton installed?"


def rows_of(count, *, dtype=torch.bfloat16, vocab=VOCAB, scale=3.0):
    return torch.randn(count, vocab).mul(scale).to(dtype).to(DEVICE)


def plain(logits, shard, **keys):
    moved = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in keys.items()}
    with kernels.disabled():
        return row_stats(logits.double().cpu(), shard, **moved)


def same_stats(found, want, tolerance=2e-5):
    assert torch.equal(found.top_ids.cpu(), want.top_ids)
    for name in ("lse", "entropy", "sampled_logprobs", "sampling_logprobs", "top_logprobs", "gathered"):
        expected = getattr(want, name)
        torch.testing.assert_close(getattr(found, name).cpu().double(), expected, atol=tolerance, rtol=1e-6, msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 4, 20, 64])
@pytest.mark.parametrize("padding", [0, 501])
def test_old_pass(dtype, k, padding):
    logits = rows_of(7, dtype=dtype, vocab=VOCAB + padding)
    logits[:, VOCAB:] = 1e4
    shard = VocabShard.whole(VOCAB, VOCAB + padding)
    ids = torch.randint(0, VOCAB, (7, 5), device=DEVICE)
    ids[3, 1] = -1
    keys = {"sampled_ids": ids[:, 0], "gather_ids": ids, "k": k, "temperature": 0.7, "sampling_temperature": 0.6}
    same_stats(row_stats(logits, shard, **keys), plain(logits, shard, **keys))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 4, 64])
def test_top_k_with_ties(dtype, k):
    """Ties across the boundary, constant rows, fewer finite logits than k, all of the top in one thread's columns."""
    logits = rows_of(9, dtype=dtype).mul(2).round().div(2)
    logits[1] = 1.0
    logits[2] = -math.inf
    logits[2, 5:9] = 0.0
    logits[3] = -0.0
    logits[3, 100:300] = 0.0
    logits[4, :200] = 50.0
    logits[5, 8:16] = 60.0
    logits[6] = torch.arange(VOCAB, device=DEVICE).fmod(128).to(dtype)
    logits[7] = -logits[6]
    keys = {"sampled_ids": torch.full((9,), 6, device=DEVICE), "k": k}
    whole = VocabShard.whole(VOCAB)
    found, want = row_stats(logits, whole, **keys), plain(logits, whole, **keys)
    assert torch.equal(found.top_ids.cpu(), want.top_ids)
    torch.testing.assert_close(found.top_logprobs.cpu().double(), want.top_logprobs, atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_logits(dtype):
    logits = rows_of(6, dtype=dtype)
    logits[0] *= 1e3
    logits[1, ::2] = -math.inf
    logits[2] = -1e4
    logits[2, 17] = 1e4
    logits[3] = 1e4
    logits[4, 1:] = -math.inf
    keys = {"sampled_ids": logits.argmax(1), "k": 4, "gather_ids": logits.argmax(1)[:, None]}
    whole = VocabShard.whole(VOCAB)
    same_stats(row_stats(logits, whole, **keys), plain(logits, whole, **keys), tolerance=1e-4)


@pytest.mark.parametrize("k", [0, 4])
def test_nan_and_inf_stay_in_their_rows(k):
    logits = rows_of(6)
    want = row_stats(logits, VocabShard.whole(VOCAB), sampled_ids=torch.zeros(6, dtype=torch.int64, device=DEVICE), k=k)
    logits[1, 300], logits[2, 7], logits[3, :] = math.nan, math.inf, -math.inf
    logits[4] = math.nan
    found = row_stats(logits, VocabShard.whole(VOCAB), sampled_ids=torch.zeros(6, dtype=torch.int64, device=DEVICE), k=k)
    assert torch.isfinite(found.lse).tolist() == [True, False, False, False, False, True]
    assert ((found.top_ids >= 0) & (found.top_ids < VOCAB)).all()
    for row in (0, 5):
        assert torch.equal(found.top_ids[row], want.top_ids[row])
        assert found.lse[row] == want.lse[row]


@pytest.mark.parametrize("shard", [VocabShard(100, 411, 9999), VocabShard(100, 411, 300), VocabShard(0, 411, 3)])
def test_columns_of_a_shard(shard):
    """Uneven shards without their group: this rank's own part, ids counted from the shard's start."""
    logits = rows_of(5, vocab=411)
    ids = torch.randint(100, 100 + max(1, shard.real), (5, 3), device=DEVICE)
    keys = {"sampled_ids": ids[:, 0], "gather_ids": ids, "k": min(4, shard.real)}
    same_stats(row_stats(logits, shard, **keys), plain(logits, shard, **keys))


def gradient(logits, ids, shard, weights, temperature, inplace=True):
    leaf = logits.detach().clone().requires_grad_(True)
    logprobs, entropy = gather_with_entropy(leaf, ids, shard, temperature=temperature, inplace=inplace)
    held = torch.where(ids >= 0, logprobs, 0.0)
    ((held * weights).sum() + (entropy * weights[:, 0]).sum()).backward()
    return leaf.grad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("places", [1, 5, 65])
@pytest.mark.parametrize("inplace", [True, False])
def test_gradient_of_single_ids_and_entropy(dtype, places, inplace):
    logits = rows_of(6, dtype=dtype, vocab=VOCAB + 37)
    logits[1, ::2] = -math.inf
    shard = VocabShard.whole(VOCAB, VOCAB + 37)
    # Odd ids: the even ones of one row have probability 0.
    ids = torch.randint(0, VOCAB // 2, (6, places), device=DEVICE) * 2 + 1
    ids[2, places // 2 :] = ids[2, 0].clone()
    ids[3, 0] = -1
    weights = torch.randn(6, places, device=DEVICE)
    found = gradient(logits, ids, shard, weights, 0.8, inplace)
    with kernels.disabled():
        want = gradient(logits.double().cpu(), ids.cpu(), shard, weights.double().cpu(), 0.8)
    assert not found[:, VOCAB:].any()
    torch.testing.assert_close(found.cpu().double(), want, atol=2e-6, rtol=TOLERANCE[dtype])


def parts_in(dtype, seed, *, vocab=VOCAB, count=3, longest=4, **keys):
    parts = cases["random_parts"](seed, vocab=vocab, count=count, longest=longest, **keys)
    for part in parts:
        part.old, part.current = part.old.to(dtype).float(), part.current.to(dtype).float()
    return parts


def same_objective(parts, cfg, dtype, shard=None, reference=None):
    on_device = None if reference is None else reference.float().to(DEVICE)
    found = cases["run"](parts, cfg, shard, dtype=dtype, device=DEVICE, reference=on_device)
    with kernels.disabled():
        want = cases["run"](parts, cfg, shard, dtype=torch.float64, reference=reference)
    assert found.out.loss.item() == pytest.approx(want.out.loss.item(), abs=2e-5, rel=2e-5)
    for one, other in zip(found.grads, want.grads, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, atol=2e-6, rtol=TOLERANCE[dtype])
    told, expected = found.out.metrics.read(), want.out.metrics.read()
    for group, means in expected.items():
        assert told[group] == pytest.approx(means, abs=2e-4, rel=2e-4)
    for name, losses in want.out.sample_losses.items():
        torch.testing.assert_close(found.out.sample_losses[name].cpu().double(), losses, atol=2e-5, rtol=2e-5)
    return found


@pytest.mark.parametrize(("subset", "rule"), CELLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_cells(subset, rule, dtype):
    cfg = Loss(subset=subset, selection=rule, opd_on_rl_only="anchor", k=4)
    same_objective(parts_in(dtype, 3 + DTYPES.index(dtype)), cfg, dtype)


EVERYTHING = {"tail": "bin", "dual_clip": 1.2, "entropy_coef": 0.05, "kl_coef": 0.1, "temperature": 0.7, "diff_clip": 0.0}


@pytest.mark.parametrize(
    "extra",
    [
        {"tail": "bin"},
        {"dual_clip": 1.1, "w_opd": 0.6, "w_rl": 1.3},
        {"entropy_coef": 0.05},
        {"kl_coef": 0.1},
        {"w_opd": 0.0},
        {"w_rl": 0.0},
        {"w_rl": 0.0, "w_opd": 0.0, "entropy_coef": 0.1},
        {"k": 64},
        {"k": 1},
        {"k": 33, **EVERYTHING},
        {"subset": "overlap", **EVERYTHING},
        {"subset": "teacher", **EVERYTHING},
    ],
)
@pytest.mark.parametrize("seed", [11, 12])
def test_every_term(extra, seed):
    cfg = Loss(**{"opd_on_rl_only": "skip", "k": 4, **extra})
    parts = parts_in(torch.bfloat16, seed)
    reference = torch.full((sum(len(part.tokens) for part in parts),), -2.0, dtype=torch.float64) if cfg.kl_coef else None
    shard = VocabShard.whole(VOCAB, VOCAB + 85)
    same_objective(parts, cfg, torch.bfloat16, shard, reference)


@pytest.mark.parametrize("vocab", [2, 9, 128])
def test_small_vocabularies_and_one_token(vocab):
    parts = parts_in(torch.float32, 5, vocab=vocab, count=4, longest=1)
    same_objective(parts, Loss(k=64, tail="bin", opd_on_rl_only="anchor"), torch.float32)


@pytest.mark.parametrize("name", cases["NAMES"][:2])
def test_golden(name):
    golden = cases["load"](name)
    for subset, rule in CELLS:
        result = cases["run"](golden.parts, golden.cfg(subset, rule), device=DEVICE)
        assert result.out.loss.item() == pytest.approx(golden.expected[f"{subset}/{rule}"]["loss"], abs=5e-6)
        for part, grad in zip(golden.parts, result.grads, strict=True):
            torch.testing.assert_close(grad.cpu(), part.grads[f"{subset}/{rule}"], atol=1e-6, rtol=1e-5)


def small(dtype=torch.bfloat16, cfg=None, seed=21):
    """rows, targets, current logits on the device."""
    cfg = cfg or Loss(k=4, opd_on_rl_only="anchor")
    parts = parts_in(dtype, seed)
    result = cases["run"](parts, cfg, dtype=dtype, device=DEVICE)
    return result, torch.cat([part.current for part in parts]).to(dtype).to(DEVICE), cfg


def test_the_gradient_replaces_the_logits_and_follows_the_scale():
    result, logits, cfg = small()
    whole = VocabShard.whole(VOCAB)
    grads = []
    for scale in (1.0, 0.25):
        leaf = logits.clone().requires_grad_(True)
        out = objective(leaf, result.rows, result.targets, cfg, whole)
        (out.loss * scale).backward()
        assert leaf.grad.data_ptr() == leaf.data_ptr()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[0] * 0.25, grads[1], atol=0, rtol=1e-2)
    again = objective(logits.clone().requires_grad_(True), result.rows, result.targets, cfg, whole)
    again.loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        again.loss.backward()


def test_logits_that_are_still_needed_are_refused():
    result, logits, cfg = small(torch.float32)
    leaf = logits.clone().requires_grad_(True)
    out = objective(torch.tanh(leaf), result.rows, result.targets, cfg, VocabShard.whole(VOCAB))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.loss.backward()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_bad_rows_are_named_and_teach_nothing(value):
    result, logits, cfg = small()
    rows = result.rows
    bad = int((rows.weight > 0).nonzero()[0])
    logits[bad, int(rows.response_ids[bad]) if value == -math.inf else 5] = value
    leaf = logits.clone().requires_grad_(True)
    out = objective(leaf, rows, result.targets, cfg, VocabShard.whole(VOCAB))
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert not leaf.grad[bad].any()
    assert torch.isfinite(leaf.grad).all()
    with pytest.raises(Findings, match=rows.name(bad).split(",")[0]):
        out.check(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("divergence", ["reverse_kl", "jensen_shannon"])
def test_output_layer_in_chunks(dtype, chunk, divergence):
    result, _, cfg = small(dtype, Loss(k=4, opd_on_rl_only="anchor", divergence=divergence))
    rows, targets, shard = result.rows, result.targets, VocabShard.whole(VOCAB, VOCAB + 5)
    hidden = torch.randn(rows.count, 64).to(dtype).to(DEVICE)
    weight = torch.randn(VOCAB + 5, 64).mul(0.3).to(dtype).to(DEVICE)
    ours = [hidden.clone().requires_grad_(True), weight.clone().requires_grad_(True)]
    out = linear_objective(*ours, rows, targets, cfg, shard, chunk_rows=chunk)
    (out.loss * 0.5).backward()
    exact = [hidden.double().cpu().requires_grad_(True), weight.double().cpu().requires_grad_(True)]
    with kernels.disabled():
        want = objective(
            exact[0] @ exact[1].t(), rows.to("cpu"), map_tensors(targets, torch.Tensor.cpu), cfg, shard, inplace=False
        )
        (want.loss * 0.5).backward()
    assert out.loss.item() == pytest.approx(want.loss.item(), rel=2e-2 if dtype == torch.bfloat16 else 1e-4)
    for one, other in zip(ours, exact, strict=True):
        error = (one.grad.cpu().double() - other.grad).norm() / other.grad.norm()
        assert error < (4e-2 if dtype == torch.bfloat16 else 1e-4)


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_nothing_waits_for_the_device():
    result, logits, cfg = small()
    rows, targets, whole = result.rows, result.targets, VocabShard.whole(VOCAB)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            stats = row_stats(logits, whole, sampled_ids=rows.response_ids, k=4, gather_ids=targets.gather_ids)
            leaf = logits.clone().requires_grad_(True)
            objective(leaf, rows, targets, cfg, whole).loss.backward()
            assert stats.top_ids.shape == (rows.count, 4)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_real_vocabulary(dtype):
    """151,936 columns, enough rows that a row's offset passes 2^31."""
    vocab = 151_936
    logits = torch.randn(16_384, vocab, device=DEVICE, dtype=dtype)
    ids = torch.randint(0, vocab, (16_384, 2), device=DEVICE)
    found = row_stats(logits, VocabShard.whole(vocab), sampled_ids=ids[:, 0], k=64, gather_ids=ids)
    for part in (slice(0, 8), slice(16_376, 16_384)):
        want = plain(logits[part], VocabShard.whole(vocab), sampled_ids=ids[part, 0], k=64, gather_ids=ids[part])
        assert torch.equal(found.top_ids[part].cpu(), want.top_ids)
        torch.testing.assert_close(found.lse[part].cpu().double(), want.lse, atol=1e-5, rtol=0)
        torch.testing.assert_close(found.entropy[part].cpu().double(), want.entropy, atol=1e-4, rtol=0)
        torch.testing.assert_close(found.gathered[part].cpu().double(), want.gathered, atol=2e-5, rtol=0)
