"""The teacher says what Hugging Face says, however its candidates are packed and its ranks arranged."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

TESTS = Path(__file__).parents[1]
launch = runpy.run_path(str(TESTS / "worlds.py"))["launch"]
make = runpy.run_path(str(TESTS / "tiny_models.py"))["make"]
PROGRAM = Path(__file__).with_name("program.py")
program = runpy.run_path(str(PROGRAM))
RUNS = tuple(program["RUNS"])
SAMPLES = program["make_samples"]()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Scores by run, and those of Hugging Face over the student's vocabulary at the temperature."""
    folder = tmp_path_factory.mktemp("scoring")
    model = make("llama", folder / "hf")
    launch(PROGRAM, "score", 2, folder)
    expected = {}
    vocab, temperature, k = (program[name] for name in ("STUDENT_VOCAB", "TEMPERATURE", "K"))
    for sample, (_, wanted) in zip(SAMPLES, program["questions"](SAMPLES), strict=True):
        logprobs = []
        for candidate in sample.candidates:
            with torch.no_grad():
                logits = model(torch.tensor([candidate.token_ids(sample.response_ids)])).logits[0]
            rows = logits[len(candidate.hinted_prompt_ids) - 1 : -1, :vocab]
            logprobs.append((rows / temperature).log_softmax(-1))
        every = torch.stack(logprobs)
        values, ids = every.topk(k, dim=-1)
        at = every.gather(-1, torch.from_numpy(wanted).expand(len(every), -1, -1))
        expected[sample.sample_id] = ids.numpy(), values.numpy(), at.numpy()
    return {run: dict(np.load(folder / f"{run}.npz")) for run in RUNS}, expected


@pytest.mark.parametrize("sample", [s.sample_id for s in SAMPLES])
@pytest.mark.parametrize("run", RUNS)
def test_equal_to_hugging_face(world, run, sample):
    runs, expected = world
    ids, logprobs, at = expected[sample]
    assert np.array_equal(runs[run][f"{sample}.ids"], ids)
    np.testing.assert_allclose(runs[run][f"{sample}.logprobs"], logprobs, atol=1e-5)
    np.testing.assert_allclose(runs[run][f"{sample}.at"], at, atol=1e-5)


@pytest.mark.parametrize("run", RUNS)
def test_the_first_candidate_alone(world, run):
    runs, expected = world
    for sample, (_, logprobs, _) in expected.items():
        np.testing.assert_allclose(runs[run][f"{sample}.first"], logprobs[:1], atol=1e-5)


def test_only_real_candidates_are_forwarded_and_what_they_share_once(world):
    runs = world[0]
    sequences = [c.token_ids(s.response_ids) for s in SAMPLES for c in s.candidates]
    whole, distinct = sum(map(len, sequences)), len({s[:n] for s in sequences for n in range(1, len(s) + 1)})
    assert {run: int(runs[run]["tokens"]) for run in ("plain", "alone", "one")} == {
        "plain": whole,
        "alone": whole,
        "one": distinct,
    }
    assert all(distinct <= runs[run]["tokens"] < whole for run in ("tp2sp", "pp2")), "a small budget cuts some prefixes"
    assert 0 < runs["dp2"]["tokens"] < distinct, "two data-parallel ranks share the work"


@pytest.mark.parametrize("run", RUNS)
def test_tokens_are_told_by_sample(world, run):
    found = world[0][run]
    if run == "dp2":
        assert found["tokens_by_sample"].sum() > found["tokens"], "of all ranks, not of the first alone"
    else:
        assert found["tokens_by_sample"].sum() == found["tokens"]


ROWS = sum(len(s.candidates) * len(s.response_ids) for s in SAMPLES)


def test_the_output_layer_sees_response_rows_only(world):
    rows = {run: world[0][run]["scoring"][:, 1].tolist() for run in RUNS}
    shares = rows.pop("dp2")
    assert sum(shares) == ROWS
    assert min(shares) > 0
    # Of tensor-parallel ranks each holds columns of it, of pipeline stages the last has it.
    assert rows == {"one": [ROWS], "plain": [ROWS], "alone": [ROWS], "tp2sp": [ROWS, ROWS], "pp2": [0, ROWS]}


def test_log_probs_at_the_students_ids_need_no_second_forward(world):
    scoring, asking = ({run: world[0][run][part][:, 0].tolist() for run in RUNS} for part in ("scoring", "asking"))
    assert scoring["one"] == scoring["plain"] == [1]
    assert scoring["alone"] == [sum(len(s.candidates) for s in SAMPLES)]
    assert min(map(min, scoring.values())) > 0
    assert not any(map(any, asking.values()))
    assert world[0]["one"]["asking"][:, 1].tolist() == [ROWS]


def test_hints_anywhere_are_scored_as_without_sharing(world):
    runs = world[0]
    for name in (f"{s.sample_id}.{part}" for s in SAMPLES for part in ("logprobs", "at")):
        np.testing.assert_allclose(runs["one"][name], runs["plain"][name], atol=1e-5)


@pytest.mark.parametrize("run", RUNS)
def test_frozen_and_forgetful(world, run):
    found = world[0][run]
    assert found["hashes"][0] == found["hashes"][1]
    assert not found["grads"].any()
    assert not found["training"].any()
    assert found["cached"] == 0


@pytest.mark.parametrize("run", RUNS)
def test_what_cannot_be_scored_is_named(world, run):
    forgotten, too_long = world[0][run]["said"]
    assert "no hidden states of sample s0" in forgotten
    assert "Candidate 0 of sample long has 33 tokens of 30" in too_long
