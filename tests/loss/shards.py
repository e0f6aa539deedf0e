"""What every rank of a tensor-parallel world checks; run by test_shards.py through tests/worlds.py."""

from __future__ import annotations

import itertools
import math
import runpy
from pathlib import Path

import torch
import torch.distributed as dist

from openclaw_core.config.schema import Loss
from openclaw_core.loss.logprobs import gather_logprobs, row_stats
from openclaw_core.loss.selection import RULES as REGISTERED
from openclaw_core.vocab import VocabShard

RULES = REGISTERED.names()
cases = runpy.run_path(str(Path(__file__).with_name("cases.py")))
oracle = runpy.run_path(str(Path(__file__).with_name("oracle.py")))["oracle"]


def layouts(vocab, rank, ranks):
    """Columns per rank: as even as can be; padded so that the last rank has few; padded so that it has none."""
    even = math.ceil(vocab / ranks)
    few = math.ceil(vocab / (ranks - 1)) - 1
    for size in (even, few, math.ceil(vocab / (ranks - 1))):
        yield VocabShard(rank * size, size, vocab, dist.group.WORLD)


def check(result, parts, loss, k_star, grads, shard, tolerance):
    assert abs(result.out.loss.item() - loss) <= tolerance * max(1, abs(loss)), (result.out.loss.item(), loss)
    if result.targets.opd is not None:
        assert [k.tolist() for k in result.rows.split(result.targets.opd.k_star)] == k_star
    for grad, expected in zip(result.grads, grads, strict=bool(grads)):
        own = expected[:, shard.start : shard.start + shard.real].to(grad)
        torch.testing.assert_close(grad, own, atol=tolerance, rtol=10 * tolerance)


def golden(rank, ranks):
    """All cases and cells; the layouts take turns."""
    for turn, name in enumerate(cases["NAMES"]):
        case = cases["load"](name)
        shards = list(layouts(case.parts[0].vocab, rank, ranks))
        for (subset, rule), shard in zip(cases["CELLS"], itertools.cycle(shards[turn % 3 :] + shards[: turn % 3])):
            expected = case.expected[f"{subset}/{rule}"]
            grads = [part.grads[f"{subset}/{rule}"] for part in case.parts]
            result = cases["run"](case.parts, case.cfg(subset, rule), shard)
            check(result, case.parts, expected["loss"], expected["k_star"], grads, shard, 3e-6)
            if result.targets.opd is not None:
                size = result.out.metrics.read()["all"]["opd/support_size"] * len(case.parts)
                assert abs(size - expected["subset_size"]) < 1e-4


def random(rank, ranks):
    """Ties that reach across ranks, all terms, float64 against the oracle."""
    cells = itertools.product(("student", "teacher", "overlap"), ("token_optimal", "signal_optimal"), ("none", "bin"))
    for seed, (subset, rule, tail) in enumerate(cells):
        parts = cases["random_parts"](seed, ties=seed % 2 == 0)
        cfg = Loss(
            subset=subset, selection=rule, tail=tail, k=5, temperature=0.7, entropy_coef=0.1, kl_coef=0.1, opd_on_rl_only="anchor"
        )
        reference = torch.full((sum(len(part.tokens) for part in parts),), -2.0, dtype=torch.float64)
        told = oracle(parts, cfg, reference)
        shard = list(layouts(parts[0].vocab, rank, ranks))[seed // 2 % 3]
        result = cases["run"](parts, cfg, shard, dtype=torch.float64, reference=reference)
        check(result, parts, told.loss, told.k_star, told.grads, shard, 1e-9)


def old_pass(rank, ranks):
    """Every output of row_stats equals that of one rank, bit for bit in the ids, whatever the dtype."""
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        logits = torch.randn(40, 33).mul(3).to(dtype)
        logits[3, 5:20] = -math.inf
        logits[4, 1:] = -math.inf
        logits[5] -= 2000
        ids = torch.randint(0, 33, (40, 6))
        ids[2, 1] = -1
        keys = {"sampled_ids": logits.argmax(1), "temperature": 0.8, "k": 7, "gather_ids": ids, "sampling_temperature": 0.6}
        alone = row_stats(logits, VocabShard.whole(33), **keys)
        for shard in layouts(33, rank, ranks):
            shared = row_stats(cases["columns"](logits, shard), shard, **keys)
            assert torch.equal(shared.top_ids, alone.top_ids)
            for name in ("lse", "entropy", "sampled_logprobs", "sampling_logprobs", "top_logprobs", "gathered"):
                torch.testing.assert_close(getattr(shared, name), getattr(alone, name), atol=2e-6, rtol=2e-6)


def context(rank, ranks, device="cpu"):
    """Rows cut over two context ranks (times tensor-parallel ranks) and samples over data-parallel ones: one rank's numbers."""
    tensor = ranks // 2
    lines = [dist.new_group(list(range(i * tensor, (i + 1) * tensor))) for i in range(2)]
    across = [dist.new_group([i, i + tensor]) for i in range(tensor)]
    place, column = divmod(rank, tensor)
    for seed, (subset, rule) in enumerate(itertools.product(("student", "teacher", "overlap"), RULES)):
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
            parts = cases["random_parts"](seed, longest=9, count=3)
            vocab = parts[0].vocab
            tail, clip = ("none", "bin")[seed % 2], (1.0, 0.3)[seed % 3 == 0]
            cfg = Loss(subset=subset, selection=rule, tail=tail, k=5, diff_clip=clip, entropy_coef=0.1, opd_on_rl_only="anchor")
            size = math.ceil(vocab / tensor) + 1
            shard = VocabShard(column * size, size, vocab, lines[place] if tensor > 1 else None)
            alone = cases["run"](parts, cfg, dtype=dtype, device=device)
            grads = torch.cat(alone.grads)[:, shard.start : shard.start + shard.real]
            count = alone.rows.count
            # Context: every other row, by turns; and everything on one rank, nothing on the other.
            for index in (torch.arange(place, count, 2), torch.arange(count * place)):
                result = cases["run"](parts, cfg, shard, dtype=dtype, device=device, held=(index, across[column]))
                same(result.out, alone.out, across[column], tolerance)
                torch.testing.assert_close(result.grads[0], grads[index], atol=tolerance, rtol=10 * tolerance)
                assert torch.equal(result.targets.opd.k_star, alone.targets.opd.k_star[index])
            # Data: samples by turns.
            result = cases["run"](parts[place::2], cfg, shard, dtype=dtype, device=device)
            same(result.out, alone.out, across[column], tolerance)
            mine = torch.cat(alone.grads[place::2])[:, shard.start : shard.start + shard.real]
            torch.testing.assert_close(torch.cat(result.grads), mine, atol=tolerance, rtol=10 * tolerance)


def same(out, alone, group, tolerance):
    """Loss and metrics added up over group are those of one rank."""
    loss, values = out.loss.detach().clone(), out.metrics.values.clone()
    dist.all_reduce(loss, group=group)
    dist.all_reduce(values, group=group)
    assert abs(loss.item() - alone.loss.item()) <= tolerance * max(1, abs(alone.loss.item())), (loss, alone.loss)
    torch.testing.assert_close(values, alone.metrics.values, atol=tolerance, rtol=10 * tolerance)


def sent_bytes(*case, **more):
    """What this rank gives to collectives while a case runs."""
    sent = []
    reduce, gather = dist.all_reduce, dist.all_gather
    dist.all_reduce = lambda x, *a, **k: (sent.append(x.nbytes), reduce(x, *a, **k))[1]
    dist.all_gather = lambda out, x, *a, **k: (sent.append(x.nbytes), gather(out, x, *a, **k))[1]
    try:
        cases["run"](*case, **more)
    finally:
        dist.all_reduce, dist.all_gather = reduce, gather
    return sum(sent)


def traffic(rank, ranks):
    """The bytes of docs/method.md, whatever the vocabulary: one step of every cell, all rows on every rank."""
    k, group = 4, dist.group.WORLD
    for subset, rule in itertools.product(("student", "teacher", "overlap"), RULES):
        cfg = Loss(subset=subset, selection=rule, k=k, opd_on_rl_only="anchor")
        for vocab in (ranks * 8, ranks * 512):
            parts = cases["random_parts"](3, vocab=vocab, count=4)
            shard = VocabShard(rank * vocab // ranks, vocab // ranks, vocab, group)
            rows = sum(len(part.tokens) for part in parts)
            most = 1 if rule == "shortest" else max(len(part.teacher) for part in parts)
            asked = most * k if subset == "teacher" else 0
            old, training = 4 * (1 + 3 + 1 + asked) + (4 + 8) * k, 4 * (1 + 3 + k + 1)
            sent = sent_bytes(parts, cfg, shard)
            assert sent == rows * (old + training), (subset, rule, vocab, sent, rows * (old + training))
            # Context ranks add up sums per step and candidate: int64 counts, and float64 signals.
            held = (torch.arange(rank, rows, ranks), group)
            steps = sum(1 if part.spans is None else len(part.spans) for part in parts) + 1
            sums = {"sequence_optimal": 1, "signal_optimal": 2}.get(rule, 0)
            sent = sent_bytes(parts, cfg, held=held)
            assert sent == 8 * sums * steps * most, (subset, rule, vocab, sent)


def half(rank, ranks):
    """bf16 logits, cut by columns, then by rows: sums are float32 all the same, so ranks differ by its rounding in value, and by
    one bf16 step in gradient."""
    for seed, (subset, rule) in enumerate(itertools.product(("student", "teacher", "overlap"), RULES)):
        parts = cases["random_parts"](seed, count=3)
        cfg = Loss(subset=subset, selection=rule, k=5, entropy_coef=0.1, opd_on_rl_only="anchor")
        shard = list(layouts(parts[0].vocab, rank, ranks))[seed % 3]
        alone = cases["run"](parts, cfg, dtype=torch.bfloat16)
        told = alone.rows.split(alone.targets.opd.k_star)
        result = cases["run"](parts, cfg, shard, dtype=torch.bfloat16)
        check(result, parts, alone.out.loss.item(), [k.tolist() for k in told], [], shard, 1e-5)
        for grad, whole in zip(result.grads, alone.grads, strict=True):
            own = whole[:, shard.start : shard.start + shard.real]
            torch.testing.assert_close(grad, own, atol=1e-5, rtol=torch.finfo(torch.bfloat16).eps)
        index, group = torch.arange(rank, alone.rows.count, ranks), dist.group.WORLD
        result = cases["run"](parts, cfg, dtype=torch.bfloat16, held=(index, group))
        same(result.out, alone.out, group, 1e-5)
        torch.testing.assert_close(
            result.grads[0], torch.cat(alone.grads)[index], atol=1e-5, rtol=torch.finfo(torch.bfloat16).eps
        )


def bad_rows(rank, ranks):
    """NaN on one rank is seen by all."""
    for value in (math.nan, math.inf):
        logits = torch.randn(4, 8 * ranks)
        logits[1, 3] = value
        shard = VocabShard(8 * rank, 8, 8 * ranks, dist.group.WORLD)
        leaf = cases["columns"](logits, shard).requires_grad_(True)
        out = gather_logprobs(leaf, torch.full((4, 1), 8), shard, inplace=False)
        assert torch.isfinite(out).flatten().tolist() == [True, False, True, True]
        torch.where(torch.isfinite(out), out, 0.0).sum().backward()
        assert torch.isfinite(leaf.grad).all()


def main(rank, ranks, folder, ports):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    for one in (traffic, context, half, bad_rows, old_pass, random, golden):
        torch.manual_seed(0)
        one(rank, ranks)
    dist.destroy_process_group()
