"""What a real step leaves in a dump: all that the data contract names, as the objective had it and as the model says it."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_core.config.schema import Loss
from openclaw_core.dumps.anomalies import anomalies
from openclaw_core.dumps.position import Positions
from openclaw_core.dumps.reader import DumpReader
from openclaw_core.dumps.schema import TENSORS
from openclaw_core.dumps.summary import summarise
from openclaw_core.dumps.tokens import TokenTexts
from openclaw_core.loss.logprobs import row_stats
from openclaw_core.loss.rows import pack_rows
from openclaw_core.loss.targets import build_targets
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.trainer_batch import MicroBatch
from openclaw_core.run.trainer_report import dump_arrays
from openclaw_core.vocab import VocabShard

TESTS = Path(__file__).parents[1]
launch = runpy.run_path(str(TESTS / "worlds.py"))["launch"]
make = runpy.run_path(str(TESTS / "tiny_models.py"))["make"]
PROGRAM = Path(__file__).with_name("dump_program.py")
program = runpy.run_path(str(PROGRAM))
CELLS, SHARED, SAMPLES = tuple(program["CELLS"]), tuple(program["SHARED"]), program["make_samples"]()
POLICY = {
    "response_ids", "loss_mask", "prompt_ids", "engine_logprobs", "sampled_logprobs", "sampling_logprobs", "entropy",
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The dump of each cell, and the old student's logits [R, V] by sample as Hugging Face has them."""
    folder = tmp_path_factory.mktemp("dumps")
    model = make("qwen3", folder / "hf")
    launch(PROGRAM, "steps", 2, folder)
    logits = {}
    for sample in SAMPLES:
        with torch.no_grad():
            every = model(torch.tensor([sample.prompt_ids + sample.response_ids])).logits[0]
        logits[sample.sample_id] = every[len(sample.prompt_ids) - 1 : -1].numpy()
    return {name: DumpReader(folder / name / "dumps").step(1) for name in (*CELLS, *SHARED)}, logits, folder


def logprobs(logits, temperature):
    return torch.from_numpy(logits / temperature).log_softmax(-1).numpy()


@pytest.mark.parametrize("cell", CELLS)
def test_a_dump_holds_what_the_contract_names_and_nothing_odd(world, cell):
    dump = world[0][cell]
    header = dump.header
    for sample, trained in zip(dump.samples, SAMPLES, strict=True):
        assert anomalies(header, sample) == []
        student = {"student_ids", "student_logprobs"} if header.w_opd else set()
        taught = header.w_opd > 0 and (sample.kind != "rl" or header.opd_on_rl_only == "anchor")
        others = {"teacher_at_student": header.subset == "student" or header.selection == "signal_optimal"}
        others |= {"student_at_teacher": header.subset == "teacher"}
        teacher = TENSORS.keys() - POLICY - {"student_ids", "student_logprobs"} - others.keys()
        teacher |= {name for name, there in others.items() if there}
        assert sample.tensors.keys() == POLICY | student | (teacher if taught else set())
        if taught:
            scored = 1 if header.selection == "shortest" else len(trained.candidates)
            assert len(sample.get("teacher_ids")) == len(sample.get("overlap")) == scored
            shared = (sample.get("teacher_ids")[..., None] == sample.get("student_ids")[None, :, None]).any(-1).sum(-1)
            assert np.array_equal(sample.get("overlap"), shared)
            entries = Positions(header, sample, TokenTexts(None)).at(0).support
            assert [e.token.text for e in entries if e.token.id < 0] == ["<rest>"] * (header.tail == "bin")


@pytest.mark.parametrize("cell", [*CELLS, *SHARED])
def test_log_probs_are_the_models_at_the_temperature_of_each(world, cell):
    dumps, logits, folder = world
    largest = 0.0
    for sample in dumps[cell].samples:
        scored, sampled = (logprobs(logits[sample.sample_id], program[name]) for name in ("SCORING", "SAMPLING"))
        ids = sample.get("response_ids")[:, None]
        np.testing.assert_allclose(sample.get("sampled_logprobs"), np.take_along_axis(scored, ids, 1)[:, 0], atol=1e-4)
        np.testing.assert_allclose(sample.get("sampling_logprobs"), np.take_along_axis(sampled, ids, 1)[:, 0], atol=1e-4)
        gap = np.abs(np.take_along_axis(sampled, ids, 1)[:, 0] - sample.get("engine_logprobs"))
        assert summarise(dumps[cell].header, sample).engine_gap == pytest.approx(gap.mean(), abs=1e-4)
        largest = max(largest, gap.max())
        at_teacher = sample.get("student_at_teacher")
        if at_teacher is not None:
            wanted = np.stack([np.take_along_axis(scored, own, 1) for own in sample.get("teacher_ids")])
            np.testing.assert_allclose(at_teacher, wanted, atol=1e-4)
            for shown, own in zip(summarise(dumps[cell].header, sample).candidates, wanted, strict=False):
                assert shown.student_mass == pytest.approx(np.exp(own).sum(-1).mean(), rel=1e-4)
    metrics = RunFolder(folder / cell).read().facts["metrics"]
    assert metrics["gap/engine_max"] == pytest.approx(largest, abs=1e-4)
    assert metrics["gap/engine_max"] >= metrics["gap/engine_mean"] > 0


@pytest.mark.parametrize("layout", SHARED)
def test_ranks_that_share_a_step_leave_the_dump_of_one(world, layout):
    alone, shared = world[0]["teacher.token_optimal"].samples, world[0][layout].samples
    for one, other in zip(alone, shared, strict=True):
        assert one.tensors.keys() == other.tensors.keys()
        for name, expected in one.tensors.items():
            np.testing.assert_allclose(other.get(name), expected, atol=1e-4, rtol=1e-4, err_msg=name)


def test_an_id_of_probability_0_is_no_id_of_the_students():
    config, samples = program["settings"](), SAMPLES[1:2]
    rows = pack_rows(samples, config.loss, real_vocab=300)
    torch.manual_seed(0)
    stats = row_stats(torch.randn(rows.count, 300), VocabShard.whole(300), sampled_ids=rows.response_ids, k=3)
    stats.top_logprobs[2, 1:] = float("-inf")
    targets = build_targets(Loss(w_opd=0), rows, stats)
    dump = dump_arrays(MicroBatch(tuple(samples), None, rows, rows), targets, stats, config.loss)["s1"]
    assert (dump["student_ids"] == -1).nonzero()[0].tolist() == [2, 2]
