from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_core.config.schema import Loss
from openclaw_core.errors import Findings, UserError
from openclaw_core.loss.rows import check_batch, pack_rows
from openclaw_core.loss.teacher_rows import pack_teacher
from openclaw_core.types import SampleKind, TopK

cases = runpy.run_path(str(Path(__file__).with_name("cases.py")))
VOCAB = 12


@pytest.fixture
def parts():
    drawn = cases["random_parts"](6, vocab=VOCAB, count=3)
    return [replace(part, kind=SampleKind.OPD_RL) for part in drawn]


@pytest.fixture
def samples(parts):
    return [part.sample(i) for i, part in enumerate(parts)]


def findings(function, *args, **more):
    with pytest.raises(Findings) as caught:
        function(*args, **more)
    return [what for what, _ in caught.value.findings]


def test_weights_sum_to_one_per_trained_sample(samples):
    samples[1] = replace(samples[1], loss_mask=(0,) * len(samples[1].loss_mask))
    samples[2] = replace(samples[2], loss_mask=(1,) * len(samples[2].loss_mask), reward=-1.0)
    rows = pack_rows(samples, Loss(), real_vocab=VOCAB)
    assert [part.sum().item() for part in rows.split(rows.weight)][1:] == pytest.approx([0, 1])
    assert rows.split(rows.advantages)[2].unique().tolist() == [-1.0]
    assert rows.name(len(samples[0].response_ids)) == "sample s1, response position 0"
    later = rows.take(slice(len(samples[0].response_ids), None))
    assert later.name(0) == "sample s1, response position 0"


def test_all_faults_of_all_samples_are_told_at_once(samples):
    count = len(samples[2].response_ids)
    bad = [
        replace(samples[0], loss_mask=(1,) * 99, response_logprobs=(float("nan"),) * len(samples[0].response_ids)),
        replace(samples[1], response_ids=(VOCAB,) * len(samples[1].response_ids)),
        replace(samples[2], step_spans=((0, count), (count - 1, count)), loss_mask=(2,) * count),
    ]
    told = " ".join(findings(pack_rows, bad, Loss(), real_vocab=VOCAB))
    for words in (
        "s0 has",
        "and 99 loss_mask",
        "nan in response_logprobs at response position 0",
        "s1 has id 12",
        "s2 has 2 in loss_mask",
    ):
        assert words in told
    assert f"span [{count - 1}, {count})" in told


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_advantages_and_log_probs_that_are_not_finite_are_named(samples, value):
    advantages = [np.ones(len(sample.response_ids)) for sample in samples]
    advantages[2][-1] = value
    bad = [replace(samples[0], response_logprobs=(value,) * len(samples[0].response_ids)), *samples[1:]]
    last = len(advantages[2]) - 1
    assert findings(pack_rows, bad, Loss(), real_vocab=VOCAB, advantages=advantages) == [
        f"sample s0 holds {value} in response_logprobs at response position 0;",
        f"sample s2 holds {value} in advantages at response position {last};",
    ]


def test_a_batch_without_a_trainable_token_is_refused_by_name(samples):
    check_batch(samples)
    empty = [replace(sample, loss_mask=(0,) * len(sample.loss_mask)) for sample in samples]
    with pytest.raises(UserError, match="3 samples: s0, s1, s2"):
        check_batch(empty)
    with pytest.raises(UserError, match="no sample"):
        check_batch([])


def test_teacher_faults_name_sample_and_position(parts, samples):
    rows = pack_rows(samples, Loss(k=4), real_vocab=VOCAB)
    scores = cases["teacher_scores"](parts, 4, None)
    missing, narrow, broken = scores[0], scores[1], scores[2]
    narrow = replace(narrow, top=TopK(narrow.top.ids[..., :3], narrow.top.logprobs[..., :3]))
    logprobs = broken.top.logprobs.copy()
    logprobs[0, 0, 1] = np.nan
    broken = replace(broken, top=TopK(broken.top.ids, logprobs))
    told = " ".join(findings(pack_teacher, rows, [narrow, broken], Loss(k=4), real_vocab=VOCAB))
    assert f"sample {missing.sample_id}: top.ids is missing" in told
    assert "sample s1: top.ids has shape" in told
    assert "sample s2: top.logprobs holds nan for candidate 0 at response position 0" in told
    foreign = [replace(score, top=TopK(score.top.ids + VOCAB, score.top.logprobs)) for score in scores]
    assert "outside the vocabulary" in findings(pack_teacher, rows, foreign, Loss(k=4), real_vocab=VOCAB)[0]


@pytest.mark.parametrize(("value", "said"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, None)])
def test_log_probs_at_the_students_ids_are_looked_at_too(parts, samples, value, said):
    """-inf is a log-prob, of an id that the teacher excludes."""
    rows = pack_rows(samples, Loss(k=4), real_vocab=VOCAB)
    top_ids = [part.old.topk(4).indices for part in parts]
    scores = cases["teacher_scores"](parts, 4, top_ids)
    scores[1].at_student[-1, 0, 2] = value
    if said is None:
        assert pack_teacher(rows, scores, Loss(k=4), real_vocab=VOCAB).at_student.isneginf().sum() == 1
        return
    (told,) = findings(pack_teacher, rows, scores, Loss(k=4), real_vocab=VOCAB)
    last = len(parts[1].teacher) - 1
    assert told == f"sample s1: at_student holds {said} for candidate {last} at response position 0;"


def test_samples_without_opd_need_no_scores(samples):
    samples = [replace(sample, kind=SampleKind.RL) for sample in samples]
    rows = pack_rows(samples, Loss(), real_vocab=VOCAB)
    teacher = pack_teacher(rows, [], Loss(), real_vocab=VOCAB)
    assert not teacher.real.any()
    assert teacher.at_student is not None
    assert findings(pack_teacher, replace(rows, opd=torch.ones_like(rows.opd)), [], Loss(), real_vocab=VOCAB)


def test_shortest_packs_the_first_candidate_only(parts, samples):
    cfg = Loss(selection="shortest", k=4)
    rows = pack_rows(samples, cfg, real_vocab=VOCAB)
    first = [replace(s, top=TopK(s.top.ids[:1], s.top.logprobs[:1])) for s in cases["teacher_scores"](parts, 4, None)]
    assert pack_teacher(rows, first, cfg, real_vocab=VOCAB).ids.shape[1] == 1
