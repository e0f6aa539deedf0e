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


def test_only_real_candidates_are_forwarded(world):
    tokens = sum(len(c.token_ids(s.response_ids)) for s in SAMPLES for c in s.candidates)
    assert all(world[0][run]["tokens"] == tokens for run in RUNS if run != "dp2")
    assert 0 < world[0]["dp2"]["tokens"] < tokens, "two data-parallel ranks share the work"


@pytest.mark.parametrize("run", RUNS)
def test_frozen_and_forgetful(world, run):
    found = world[0][run]
    assert found["hashes"][0] == found["hashes"][1]
    assert not found["grads"].any()
    assert found["cached"] == 0


@pytest.mark.parametrize("run", RUNS)
def test_what_cannot_be_scored_is_named(world, run):
    forgotten, too_long = world[0][run]["said"]
    assert "no hidden states of sample s0" in forgotten
    assert "Candidate 0 of sample long has 33 tokens of 30" in too_long
