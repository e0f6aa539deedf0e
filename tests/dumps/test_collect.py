"""Dumps made from what the loss itself worked with: right by the independent checks of anomalies."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from openclaw_core.config.schema import Loss  # noqa: E402
from openclaw_core.dumps.anomalies import anomalies  # noqa: E402
from openclaw_core.dumps.collect import collect  # noqa: E402
from openclaw_core.dumps.position import Positions  # noqa: E402
from openclaw_core.dumps.reader import DumpReader  # noqa: E402
from openclaw_core.dumps.schema import HintDump, SampleDump, StepDump, StepHeader  # noqa: E402
from openclaw_core.dumps.tokens import TokenTexts  # noqa: E402
from openclaw_core.dumps.writer import DumpWriter  # noqa: E402
from openclaw_core.loss.logprobs import row_stats  # noqa: E402
from openclaw_core.loss.needs import needs  # noqa: E402
from openclaw_core.loss.rows import pack_rows  # noqa: E402
from openclaw_core.loss.targets import build_targets  # noqa: E402
from openclaw_core.loss.teacher_rows import pack_teacher  # noqa: E402
from openclaw_core.types import Candidate, Hint, Sample, SampleKind, TeacherScores, TopK  # noqa: E402
from openclaw_core.vocab import VocabShard  # noqa: E402

VOCAB, LENGTHS, COUNTS = 23, (5, 7, 4), (3, 1, 2)
KINDS = (SampleKind.OPD_RL, SampleKind.RL, SampleKind.OPD)


def samples():
    rng = np.random.default_rng(0)
    made = []
    for i, (length, count) in enumerate(zip(LENGTHS, COUNTS, strict=True)):
        ids = tuple(int(x) for x in rng.integers(0, VOCAB, length))
        candidates = tuple(Candidate((1, 2), Hint("x" * 12)) for _ in range(count))
        made.append(
            Sample(f"s{i}", f"t{i}", KINDS[i], 1.0, (1,), ids, (-1.0,) * length, (1,) * length, candidates, 0, ((0, 2), (2, 4)))
        )
    return made


def write_step(folder, cfg):
    """One step of the three samples through the loss's own targets, written and read again."""
    torch.manual_seed(0)
    batch = samples()
    rows = pack_rows(batch, cfg, real_vocab=VOCAB)
    shard = VocabShard(start=0, size=VOCAB, real_vocab=VOCAB)
    logits = torch.randn(rows.count, VOCAB)
    student = logits.split(LENGTHS)
    scores = []
    for sample, own in zip(batch, student, strict=True):
        teacher = torch.log_softmax(own + torch.randn(len(sample.candidates), *own.shape), -1)
        top = teacher.topk(cfg.k, dim=-1)
        at = teacher.gather(-1, own.topk(cfg.k, dim=-1).indices.expand(len(sample.candidates), -1, -1))
        scores.append(TeacherScores(sample.sample_id, TopK(top.indices.numpy(), top.values.numpy()), at.numpy()))
    teacher_rows = pack_teacher(rows, scores, cfg, real_vocab=VOCAB) if cfg.w_opd else None
    gather = teacher_rows.gather_ids() if teacher_rows is not None and needs(cfg).old_at_teacher else None
    stats = row_stats(logits, shard, sampled_ids=rows.response_ids, k=needs(cfg).student_k, gather_ids=gather)
    tensors = collect(rows, stats, build_targets(cfg, rows, stats, teacher_rows), teacher_rows)
    header = StepHeader(
        step=1, subset=cfg.subset, selection=cfg.selection, k=cfg.k, max_candidates=3, diff_clip=cfg.diff_clip, temperature=1.0,
        vocab=VOCAB, weight_version=0, tail=cfg.tail, w_opd=cfg.w_opd,
    )  # fmt: skip
    dumped = tuple(
        SampleDump(
            s.sample_id, s.turn_id, s.kind.value, s.reward, tuple(HintDump(c.hint.text) for c in s.candidates),
            tensors[s.sample_id], spans=s.step_spans,
        )
        for s in batch
    )  # fmt: skip
    DumpWriter(folder).write(StepDump(header, dumped))
    return DumpReader(folder).step(1)


@pytest.mark.parametrize("subset", ["student", "teacher", "overlap"])
@pytest.mark.parametrize("selection", ["shortest", "token_optimal", "sequence_optimal", "signal_optimal"])
@pytest.mark.parametrize("tail", ["none", "bin"])
def test_what_the_loss_chose_is_what_the_dump_says(tmp_path, subset, selection, tail):
    cfg = Loss(subset=subset, selection=selection, k=4, tail=tail)
    dump = write_step(tmp_path, cfg)
    for sample in dump.samples:
        assert anomalies(dump.header, sample) == []
    hinted, rl_only, other = dump.samples
    scored = 1 if selection == "shortest" else 3
    assert hinted.get("teacher_ids").shape == (scored, 5, 4)
    assert other.get("overlap").shape == (min(scored, 2), 4)
    assert hinted.get("support_ids").shape == (5, 4 + (tail == "bin"))
    assert rl_only.get("teacher_ids") is None
    assert rl_only.get("student_ids") is not None
    entries = Positions(dump.header, hinted, TokenTexts(None)).at(0).support
    assert [entry.token.text for entry in entries if entry.token.id < 0] == ["<rest>"] * (tail == "bin")
    if subset == "teacher":
        k = hinted.get("k_star")[0]
        np.testing.assert_allclose(hinted.get("student_at_teacher")[k, 0], hinted.get("support_student")[0, :4], rtol=1e-5)


def test_without_a_teacher_there_is_the_policy_alone(tmp_path):
    dump = write_step(tmp_path, Loss(w_opd=0))
    assert set(dump.samples[0].tensors) == {
        "response_ids", "loss_mask", "sampled_logprobs", "sampling_logprobs", "engine_logprobs", "entropy",
    }  # fmt: skip
    assert anomalies(dump.header, dump.samples[0]) == []
