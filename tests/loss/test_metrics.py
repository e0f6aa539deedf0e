"""Every metric of the loss, for each kind of samples, against sums over positions written down one by one."""

from __future__ import annotations

import runpy
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_core.config.schema import Loss
from openclaw_core.types import SampleKind

HERE = Path(__file__)
cases = runpy.run_path(str(HERE.with_name("cases.py")))
oracle = runpy.run_path(str(HERE.with_name("oracle.py")))
random_parts, run = cases["random_parts"], cases["run"]
choose, clip, ell, top = (oracle[name] for name in ("choose", "clip", "ell", "top"))
SAMPLING = 0.6


def entropy(logprobs):
    return -float((logprobs.exp() * logprobs).sum())


def clipped(advantage, ratio, cfg):
    """Whether no gradient flows: the clipped branch is larger, or the bound of dual_clip smaller."""
    low, high = 1 - cfg.eps_clip, 1 + cfg.eps_clip_high
    bounded = -advantage * clip(ratio, low, high) > -advantage * ratio
    return bounded or (cfg.dual_clip is not None and advantage < 0 and -advantage * ratio > -advantage * cfg.dual_clip)


def surrogate(advantage, ratio, cfg):
    found = max(-advantage * ratio, -advantage * clip(ratio, 1 - cfg.eps_clip, 1 + cfg.eps_clip_high))
    return min(found, -advantage * cfg.dual_clip) if cfg.dual_clip is not None and advantage < 0 else found


def at_position(part, t, cfg, k_star, overlap, best, reference):
    """name -> value at position t, of a sample with a teacher also what is of OPD."""
    cur, old, engine = ell(part.current[t], cfg.temperature), ell(part.old[t], cfg.temperature), ell(part.old[t], 1.0)
    token, a = int(part.tokens[t]), float(part.advantages[t])
    ratio = float((cur[token] - old[token]).exp())
    x = reference - float(cur[token])
    found = {
        "batch/entropy": entropy(old),
        "gap/engine_mean": abs(float(ell(part.old[t], SAMPLING)[token] - engine[token])),
        "loss/entropy": entropy(cur),
        "loss/kl": ratio * (np.exp(x) - x - 1),
        "loss/grpo": surrogate(a, ratio, cfg),
        "ratio/mean": ratio,
        "ratio/clipped_share": clipped(a, ratio, cfg),
    }
    total = cfg.w_rl * found["loss/grpo"] - cfg.entropy_coef * found["loss/entropy"] + cfg.kl_coef * found["loss/kl"]
    if k_star is not None:
        k = k_star[t]
        told = ell(part.teacher[k, t], cfg.temperature)
        mine, theirs = top(part.old[t], cfg.k), top(part.teacher[k, t], cfg.k)
        ids = {"student": mine, "teacher": theirs, "overlap": [v for v in mine if v in theirs]}[cfg.subset]
        bins = [(float(old[v]), float(told[v]), float(cur[v])) for v in ids]
        if cfg.tail == "bin":
            rest = [v for v in range(part.vocab) if v not in ids]
            bins.append(tuple(float(torch.logsumexp(x[rest], 0)) for x in (old, told, cur)))
        mass = sum(np.exp(o) for o, _, _ in bins)
        d = [clip(q - o, -cfg.diff_clip, cfg.diff_clip) for o, q, _ in bins]
        advantages = [np.exp(o) / mass * x for (o, _, _), x in zip(bins, d, strict=True)]
        ratios = [np.exp(c - o) for o, _, c in bins]
        found |= {
            "loss/opd": sum(surrogate(x, r, cfg) for x, r in zip(advantages, ratios, strict=True)),
            "opd/overlap": overlap[k][t],
            "opd/support_size": len(ids),
            "opd/empty_share": not ids,
            "opd/student_mass": sum(float(old[v].exp()) for v in ids),
            "opd/teacher_mass": sum(float(told[v].exp()) for v in ids),
            "opd/signal": sum(abs(x) for x in advantages),
            "opd/candidates": len(part.teacher),
            "opd/choice_share": len(part.teacher) > 1,
            "opd/k_star": k,
            "opd/first_share": k == 0,
            "opd/k_star_1_share": k == 1,
            "opd/k_star_2_share": k == 2,
        }
        if len(part.teacher) > 1:
            found["opd/tied_share"] = best[t] > 1
        if bins:
            found |= {
                "ratio/opd_mean": np.mean(ratios),
                "ratio/opd_clipped_share": np.mean([clipped(x, r, cfg) for x, r in zip(advantages, ratios, strict=True)]),
                "opd/abs_difference": np.mean(np.abs(d)),
                "opd/clipped_share": np.mean([abs(x) >= cfg.diff_clip for x in d]),
            }
        total += cfg.w_opd * found["loss/opd"]
    return found | {"loss/total": total}


def expected(parts, cfg, reference):
    """Means per group; a sample counts once."""
    sums, row = defaultdict(lambda: defaultdict(lambda: np.zeros(2))), 0
    for part in parts:
        length = len(part.tokens)
        k_star, overlap, best = None, None, None
        if part.kind is not SampleKind.RL or cfg.opd_on_rl_only == "anchor":
            mine = [set(top(part.old[t], cfg.k)) for t in range(length)]
            overlap = [[len(mine[t] & set(top(z[t], cfg.k))) for t in range(length)] for z in part.teacher]
            spans = ((0, length),) if part.spans is None else part.spans
            k_star = choose(cfg.selection, overlap, None, spans, length)
            # How many candidates have the best score of a position; outside every span all have 0.
            inside = {t: (start, stop) for start, stop in spans for t in range(start, stop)}
            scores = overlap
            if cfg.selection == "sequence_optimal":
                scores = [[sum(one[slice(*inside[t])]) if t in inside else 0 for t in range(length)] for one in overlap]
            best = [sum(one[t] == max(other[t] for other in scores) for one in scores) for t in range(length)]
        for t in range(length):
            if part.mask[t]:
                weight = 1 / float(part.mask.sum())
                for name, value in at_position(part, t, cfg, k_star, overlap, best, float(reference[row + t])).items():
                    for group in ("all", part.kind.value):
                        sums[group][name] += (weight * float(value), weight)
        row += length
    return {group: {name: total / count for name, (total, count) in names.items()} for group, names in sums.items()}


@pytest.fixture
def parts():
    """Four samples of each kind; one has no trainable token, and two teachers of another say the same."""
    parts = random_parts(16, vocab=40, count=12, longest=8)
    for part, kind in zip(parts, [*SampleKind] * 4, strict=True):
        part.kind = kind
        if kind is SampleKind.RL:
            part.teacher = part.teacher[:1]
    parts[1].mask[:] = 0
    parts[3].teacher = parts[3].teacher[:1].expand(2, -1, -1)
    return parts


@pytest.fixture
def reference(parts):
    return torch.from_numpy(np.random.default_rng(0).normal(-3, 0.5, sum(len(part.tokens) for part in parts)))


TERMS = {"k": 3, "diff_clip": 0.5, "w_rl": 0.7, "w_opd": 1.3, "entropy_coef": 0.1, "kl_coef": 0.1, "temperature": 0.8}


@pytest.mark.parametrize("dual_clip", [None, 1.05])
@pytest.mark.parametrize("anchor", ["skip", "anchor"])
@pytest.mark.parametrize("tail", ["none", "bin"])
@pytest.mark.parametrize("rule", ["token_optimal", "sequence_optimal"])
@pytest.mark.parametrize("subset", ["student", "teacher", "overlap"])
def test_every_metric_of_every_kind(parts, reference, subset, rule, tail, anchor, dual_clip):
    cfg = Loss(subset=subset, selection=rule, tail=tail, opd_on_rl_only=anchor, dual_clip=dual_clip, **TERMS)
    result = run(parts, cfg, dtype=torch.float64, reference=reference, sampling_temperature=SAMPLING)
    found, want = result.out.metrics.read(), expected(parts, cfg, reference)
    assert found.keys() == want.keys() == {"all", *SampleKind}
    for group, names in want.items():
        assert found[group] == pytest.approx(names, abs=1e-9), group


def test_the_case_tells_metrics_apart(parts, reference):
    """No two have one value, and none is at an end of its range; but the size of an overlap is the overlap."""
    values = expected(parts, Loss(subset="overlap", selection="token_optimal", **TERMS), reference)["all"]
    assert values.pop("opd/support_size") == values["opd/overlap"]
    assert len({round(float(value), 6) for value in values.values()}) == len(values)
    assert not [name for name, value in values.items() if value in (0, 1)]
