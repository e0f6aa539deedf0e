"""Which model a role runs: each from its own folder."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.config.load import load_profile
from openclaw_core.config.schema import Config
from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.run.plan import IllegalPlan, make_plan
from openclaw_core.run.sources import architecture_findings, architectures_of, teacher_architecture

tools = runpy.run_path(str(Path(__file__).parents[1] / "checkpoint" / "conftest.py"))
STUDENT = {"rms_norm_eps": 1e-6, "tie_word_embeddings": True, "vocab_size": 200, "max_position_embeddings": 256}
TEACHER = {
    "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 80,
    "rope_theta": 5e5, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "vocab_size": 320, "max_position_embeddings": 512,
}  # fmt: skip

INDIFFERENT = {
    "qkv_bias",
    "dtype",
    "rope_scaling",
    "experts",
    "experts_per_token",
    "moe_ffn",
    "shared_ffn",
    "dense_layers",
    "mla",
    "prefix",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A student, and a teacher that differs from it in everything, as Hugging Face folder and as torch_dist."""
    root = tmp_path_factory.mktemp("sources")
    student, teacher = tools["config"]("qwen3", **STUDENT), tools["config"]("llama", **TEACHER)
    for name, cfg in (("student", student), ("teacher", teacher)):
        tools["write_folder"](root / name, cfg, tools["weights"](cfg))
    convert(plan_conversion(root / "teacher", root / "teacher-dist", to="torch_dist"))
    return {path.name: path for path in root.iterdir()}


@pytest.mark.parametrize("source", [{"hf": "teacher"}, {"load": "teacher-dist"}, {"hf": "teacher", "load": "teacher-dist"}])
def test_the_teachers_architecture_is_its_own(folders, source):
    teacher = {key: str(folders[name]) for key, name in source.items()}
    config = Config.model_validate({"student": {"hf": str(folders["student"])}, "teacher": teacher})
    found = teacher_architecture(config)
    assert found == architecture_from_hf(folders["teacher"])
    archs, unread = architectures_of(config)
    assert (archs["teacher"], unread) == (found, [])
    student = archs["student"]
    same = {name for name in found.__dataclass_fields__ if getattr(found, name) == getattr(student, name)}
    assert same == INDIFFERENT, "what both models happen to have"


def test_without_one_the_student_teaches(folders):
    config = Config.model_validate({"student": {"hf": str(folders["student"])}})
    assert teacher_architecture(config) == architecture_from_hf(folders["student"])


@pytest.mark.parametrize("name", ["student", "teacher"])
def test_a_checkpoint_of_another_model_than_the_folder_beside_it_is_told_by_the_plan(folders, name):
    def told(hf):
        source = {name: {"hf": str(folders[hf]), "load": str(folders["teacher-dist"])}}
        config = Config.model_validate({"student": {"hf": str(folders["student"])}, **source, "rollout": {"context_length": 256}})
        return [what for what, _ in architecture_findings(config, architectures_of(config)[0])]

    assert told("teacher") == []
    (said,) = told("student")
    assert said.startswith(f"{name}.load is {folders['teacher-dist']}, which holds another model than {name}.hf, ")
    assert "layers 5, not 3; hidden 64, not 32;" in said
    assert "rope_theta 500000.0, not 1000000.0" in said
    assert "dtype" not in said


def test_models_that_the_trainer_does_not_know_are_findings_with_their_keys(tmp_path):
    for name, stated in (("gpt2", {"model_type": "gpt2"}), ("bare", {"model_type": "qwen3"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(stated))
    overrides = [f"student.hf={tmp_path / 'bare'}", f"teacher.hf={tmp_path / 'gpt2'}"]
    with pytest.raises(IllegalPlan) as caught:
        make_plan(load_profile("tiny-cpu", overrides, {}))
    assert caught.value.exit_code == 2
    found = caught.value.findings
    assert (
        f"teacher.hf: {tmp_path / 'gpt2'}: model type 'gpt2' isn't supported.", "Train one of qwen3, qwen2, llama."
    ) in found  # fmt: skip
    assert any(what.startswith(f"student.hf: {tmp_path / 'bare'}") and "num_hidden_layers" in what for what, _ in found), found


def test_a_judge_may_be_of_a_type_that_an_engine_alone_knows(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5"}))
    overrides = ["judge.kind=engine", f"judge.model={tmp_path}", "rollout.engine=sglang"]
    config = load_profile("qwen3-4b-topk", overrides, {}).config
    archs, found = architectures_of(config)
    assert (archs["judge"], found) == (None, [])
