"""Which model a role runs: each from its own folder."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.config.schema import Config
from openclaw_core.models.architecture import architecture_from_hf
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
    assert architectures_of(config)["teacher"] == found
    student = architectures_of(config)["student"]
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
        return [what for what, _ in architecture_findings(config, architectures_of(config))]

    assert told("teacher") == []
    (said,) = told("student")
    assert said.startswith(f"{name}.load is {folders['teacher-dist']}, which holds another model than {name}.hf, ")
    assert "layers 5, not 3; hidden 64, not 32;" in said
    assert "rope_theta 500000.0, not 1000000.0" in said
    assert "dtype" not in said
