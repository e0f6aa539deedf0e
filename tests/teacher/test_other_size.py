"""A teacher of another family, size, rope base, epsilon, head and vocabulary than the student's."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.teacher.compat import validate

HERE = Path(__file__).parent
launch = runpy.run_path(str(HERE.parent / "worlds.py"))["launch"]
foreign = runpy.run_path(str(HERE / "foreign.py"))
program = runpy.run_path(str(HERE / "program.py"))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    model = foreign["make"](folder / "hf")
    convert(plan_conversion(folder / "hf", folder / "torch_dist", to="torch_dist"))
    foreign["bare"](folder / "torch_dist", folder / "bare")
    launch(HERE / "program.py", "foreign", 2, folder)
    return folder, model


def test_it_differs_from_the_student_in_everything(world):
    student, teacher = (architecture_from_hf(path) for path in (foreign["TINY"], world[0] / "hf"))
    for name in ("family", "layers", "hidden", "heads", "head_dim", "ffn", "vocab", "rope_theta", "norm_eps", "tied", "qk_norm"):
        assert getattr(student, name) != getattr(teacher, name), name


@pytest.mark.parametrize("kind", ["hf", "torch_dist", "bare"])
def test_scores_are_hugging_faces_over_the_students_ids(world, kind):
    folder, model = world
    found = np.load(folder / f"{kind}.npz")
    assert found["context"] == 1024
    for sample in program["make_samples"]():
        for k, candidate in enumerate(sample.candidates):
            with torch.no_grad():
                logits = model(torch.tensor([candidate.token_ids(sample.response_ids)])).logits[0]
            rows = logits[len(candidate.hinted_prompt_ids) - 1 : -1, : program["STUDENT_VOCAB"]] / program["TEMPERATURE"]
            values, ids = rows.log_softmax(-1).topk(program["K"])
            assert np.array_equal(found[f"{sample.sample_id}.ids"][k], ids)
            np.testing.assert_allclose(found[f"{sample.sample_id}.logprobs"][k], values, atol=1e-5)


def test_all_loading_modes_give_the_same_bits(world):
    hashes = {str(np.load(world[0] / f"{kind}.npz")["hash"]) for kind in ("hf", "torch_dist", "bare")}
    assert len(hashes) == 1


def test_the_pair_is_fit(world, tmp_path):
    shutil.copytree(world[0] / "hf", tmp_path / "hf")
    report = validate(str(foreign["TINY"]), str(tmp_path / "hf"))
    assert [check.title for check in report.problems] == []
    assert {fact.name for fact in report.facts if fact.same is False} >= {"hidden", "layers", "rope_theta", "norm_eps", "tied"}
