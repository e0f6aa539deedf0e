"""The invariants of docs/method.md as properties of random cases."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from openclaw_core.config.schema import Loss
from openclaw_core.loss.needs import Needs, needs
from openclaw_core.loss.support import SUBSETS
from openclaw_core.types import SampleKind

cases = runpy.run_path(str(Path(__file__).with_name("cases.py")))
random_parts, run = cases["random_parts"], cases["run"]

SUPPORTS = SUBSETS.names()
RULES = ("shortest", "token_optimal", "sequence_optimal", "signal_optimal")
cells = st.tuples(st.sampled_from(SUPPORTS), st.sampled_from(RULES))
seeds = st.integers(0, 10**6)
quick = settings(max_examples=25, deadline=None)


def config(cell, **more):
    return Loss(subset=cell[0], selection=cell[1], **{"opd_on_rl_only": "anchor", **more})


def equal(a, b, tolerance=1e-12):
    assert a.out.loss.item() == pytest.approx(b.out.loss.item(), abs=tolerance)
    for x, y in zip(a.grads, b.grads, strict=True):
        torch.testing.assert_close(x, y, atol=tolerance, rtol=0)


def one_kind(parts):
    return [replace(part, kind=SampleKind.OPD_RL, mask=torch.ones_like(part.mask)) for part in parts]


@quick
@given(cells, seeds, st.sampled_from(["none", "bin"]))
def test_a_teacher_that_agrees_teaches_nothing(cell, seed, tail):
    parts = [replace(part, teacher=part.old.expand_as(part.teacher)) for part in random_parts(seed)]
    result = run(parts, config(cell, w_rl=0.0, tail=tail), dtype=torch.float64)
    assert result.out.loss.item() == pytest.approx(0, abs=1e-12)
    assert all(grad.abs().max() < 1e-12 for grad in result.grads)


@quick
@given(cells, seeds)
def test_two_teachers_teach_two_things(cell, seed):
    parts = one_kind(random_parts(seed))
    # A shift of two of the student's own ids: no support misses both, and no clip is saturated.
    first = [replace(part, current=part.old, teacher=part.old.expand_as(part.teacher).clone()) for part in parts]
    second = [replace(part, teacher=part.teacher.clone()) for part in first]
    for a, b in zip(first, second, strict=True):
        best = a.old.topk(2, dim=-1).indices.expand(len(a.teacher), -1, -1)
        a.teacher.scatter_add_(-1, best[..., :1], torch.full_like(a.teacher, 0.3))
        b.teacher.scatter_add_(-1, best[..., :1], torch.full_like(b.teacher, -0.01))
    one, two = (run(case, config(cell, w_rl=0.0, k=3), dtype=torch.float64) for case in (first, second))
    assert all((x - y).abs().max() > 1e-4 for x, y in zip(one.grads, two.grads, strict=True))


@quick
@given(cells, seeds)
def test_a_candidate_repeated_changes_nothing(cell, seed):
    parts = random_parts(seed, ties=True)
    again = [replace(part, teacher=torch.cat((part.teacher, part.teacher[:1], part.teacher[-1:]))) for part in parts]
    equal(run(parts, config(cell), dtype=torch.float64), run(again, config(cell), dtype=torch.float64))


@quick
@given(cells, seeds, seeds)
def test_filler_of_a_neighbour_with_more_candidates_never_wins(cell, seed, other):
    parts = random_parts(seed, vocab=12)
    loud = random_parts(other, vocab=12, count=1)[0]
    loud = replace(loud, kind=SampleKind.OPD_RL, teacher=loud.old.expand(7, -1, -1), mask=loud.mask * 0)
    alone, packed = (run(some, config(cell), dtype=torch.float64) for some in (parts, [*parts, loud]))
    assert alone.out.loss.item() == pytest.approx(packed.out.loss.item(), abs=1e-12)
    for x, y in zip(alone.grads, packed.grads, strict=False):
        assert torch.equal(x, y)
    assert not packed.grads[-1].any()


@quick
@given(cells, seeds, st.randoms(use_true_random=False))
def test_order_and_split_change_nothing(cell, seed, rng):
    parts = random_parts(seed, count=4)
    order = rng.sample(range(4), 4)
    whole = run(parts, config(cell), dtype=torch.float64)
    shuffled = run([parts[i] for i in order], config(cell), dtype=torch.float64)
    assert whole.out.loss.item() == pytest.approx(shuffled.out.loss.item(), abs=1e-12)
    for place, i in enumerate(order):
        torch.testing.assert_close(whole.grads[i], shuffled.grads[place], atol=1e-12, rtol=0)
    left, right = (run(some, config(cell), dtype=torch.float64) for some in (parts[:2], parts[2:]))
    assert whole.out.loss.item() == pytest.approx(left.out.loss.item() + right.out.loss.item(), abs=1e-12)
    added = (left.out.metrics + right.out.metrics).read()
    for group, told in whole.out.metrics.read().items():
        assert told == pytest.approx(added[group], abs=1e-9)


@quick
@given(cells, seeds)
def test_the_tail_bin_is_the_reverse_kl_of_k_plus_one_bins(cell, seed):
    parts = [replace(part, current=part.old, mask=torch.ones_like(part.mask)) for part in random_parts(seed)]
    result = run(parts, config(cell, w_rl=0.0, tail="bin", diff_clip=0.0, k=3), dtype=torch.float64)
    ids_of, k_star_of = (result.rows.split(x) for x in (result.targets.opd.ids, result.targets.opd.k_star))
    for part, grad, supports, k_star in zip(parts, result.grads, ids_of, k_star_of, strict=True):
        for t in range(len(part.tokens)):
            ids = supports[t][supports[t] >= 0]

            def bins(logits, ids=ids):
                p = torch.softmax(logits.double(), -1)
                return torch.cat((p[ids], 1 - p[ids].sum().reshape(1)))

            q = bins(part.teacher[k_star[t], t])

            def divergence(logits, q=q, bins=bins):
                p = bins(logits)
                return float((p * (p.log() - q.log())).sum())

            step = 1e-5
            for v in range(0, part.vocab, 5):
                move = torch.zeros(part.vocab, dtype=torch.float64)
                move[v] = step
                z = part.old[t].double()
                expected = (divergence(z + move) - divergence(z - move)) / (2 * step) / len(part.tokens)
                assert grad[t, v].item() == pytest.approx(expected, abs=1e-8)


@quick
@given(seeds, st.floats(0.01, 2), st.sampled_from(["none", "bin"]))
def test_a_clip_never_turns_the_gradient_around_between_two_tokens(seed, clip, tail):
    part = random_parts(seed, vocab=2, count=1)[0]
    part = replace(part, current=part.old, mask=torch.ones_like(part.mask), kind=SampleKind.OPD, teacher=part.teacher * 4)
    cfg = config(("student", "shortest"), w_rl=0.0, k=2, diff_clip=clip, tail=tail)
    result = run([part], cfg, dtype=torch.float64)
    log_q = torch.log_softmax(part.teacher[0].double(), -1)

    def divergence(logits):
        log_p = torch.log_softmax(logits.double(), -1)
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    step = 1e-4 / max(1e-9, float(result.grads[0].abs().max()))
    assert (divergence(part.old - step * result.grads[0]) <= divergence(part.old) + 1e-12).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("subset", SUPPORTS)
def test_one_token_replies_and_empty_masks(subset, rule):
    parts = one_kind(random_parts(1, count=3, vocab=11, longest=1))
    parts[1] = replace(parts[1], mask=torch.zeros(1))
    result = run(parts, config((subset, rule)))
    assert torch.isfinite(result.out.loss)
    assert not result.grads[1].any()
    assert result.grads[0].any()
    nothing = run([parts[1]], config((subset, rule)))
    assert nothing.out.loss.item() == 0
    assert nothing.out.metrics.read() == {group: {} for group in ("all", "opd+rl", "opd", "rl")}


def test_an_empty_overlap_adds_nothing_but_stays_in_the_mean():
    part = one_kind(random_parts(2, count=1, vocab=20, longest=4))[0]
    apart = part.teacher.clone()
    apart[:, 0] = -20 * part.old[0]
    part = replace(part, teacher=apart, spans=None)
    result = run([part], config(("overlap", "shortest"), w_rl=0.0, k=3))
    told = result.out.metrics.read()["all"]
    assert not result.grads[0][0].any()
    assert told["opd/empty_share"] >= 1 / len(part.tokens)
    per_row = result.rows.split(result.targets.opd.advantages.abs().sum(1))[0]
    assert per_row[0] == 0


def test_skip_leaves_rl_only_samples_to_grpo():
    parts = [
        replace(part, kind=kind) for part, kind in zip(one_kind(random_parts(4, count=2, vocab=9)), ("opd", "rl"), strict=True)
    ]
    parts = [replace(part, kind=SampleKind(part.kind)) for part in parts]
    skip, anchor = (run(parts, config(("student", "token_optimal"), w_rl=0.0, opd_on_rl_only=how)) for how in ("skip", "anchor"))
    assert not skip.grads[1].any()
    assert anchor.grads[1].any()
    assert torch.equal(skip.grads[0], anchor.grads[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("subset", SUPPORTS)
def test_half_precision_is_exact_up_to_its_own_rounding(dtype, subset):
    parts = random_parts(8, count=3)
    parts = [replace(p, current=p.current.to(dtype), old=p.old.to(dtype), teacher=p.teacher.to(dtype)) for p in parts]
    wide = [replace(p, current=p.current.float(), old=p.old.float(), teacher=p.teacher.float()) for p in parts]
    cfg = config((subset, "sequence_optimal"))
    half, full = run(parts, cfg, dtype=dtype), run(wide, cfg)
    assert half.out.loss.item() == pytest.approx(full.out.loss.item(), abs=1e-6)
    for x, y in zip(half.grads, full.grads, strict=True):
        torch.testing.assert_close(x.float(), y, atol=1e-6, rtol=torch.finfo(dtype).eps)


def test_the_gradient_in_place_is_the_same_gradient():
    parts = random_parts(9, count=3)
    for cell in ((subset, "token_optimal") for subset in SUPPORTS):
        cfg = config(cell, entropy_coef=0.1)
        equal(run(parts, cfg), run(parts, cfg, inplace=False), 0)


def test_terms_of_weight_zero_are_not_computed():
    parts = random_parts(10, count=2)
    grpo = run(parts, config(("student", "token_optimal"), w_opd=0.0))
    assert grpo.targets.opd is None
    assert grpo.targets.gather_ids.shape[1] == 1
    assert grpo.stats.top_ids.shape[1] == 0
    assert not any(name.startswith(("opd/", "loss/opd", "ratio/opd")) for name in grpo.out.metrics.names)
    opd = run(parts, config(("student", "token_optimal"), w_rl=0.0))
    assert "loss/grpo" not in opd.out.metrics.names


def test_needs_ask_for_no_more_than_is_read():
    told = {(s, r): needs(config((s, r))) for s in SUPPORTS for r in RULES}
    for (subset, rule), need in told.items():
        assert need.old_at_teacher == (subset == "teacher")
        assert need.at_student == (subset == "student" or rule == "signal_optimal")
        assert need.candidates == ("first" if rule == "shortest" else "all")
        assert need.scores(SampleKind.RL)
        nothing = needs(config((subset, rule), w_opd=0.0, kl_coef=0.1))
        assert nothing == Needs(False, False, False, need.candidates, False, 0, True)
    assert not needs(config(("student", "token_optimal"), opd_on_rl_only="skip")).scores(SampleKind.RL)
