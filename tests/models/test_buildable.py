"""What the trainer builds is told in one way: by the answer itself, a plan, `validate`, conversions and the builder."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.errors import Findings
from openclaw_core.models.architecture import FAMILIES, architecture_from_hf
from openclaw_core.models.buildable import ROPE_PARAMETERS, buildable, check_buildable, trained
from openclaw_core.models.megatron.builder import transformer_config
from openclaw_core.models.megatron.parallel import ParallelSizes

tools = runpy.run_path(str(Path(__file__).parents[1] / "checkpoint" / "conftest.py"))
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "model_type": "qwen3_moe"}
KINDS = {
    "yarn": ({"rope_scaling": YARN}, "Its rope scaling is 'yarn', and the trainer computes none, linear, llama3."),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "Its rope scaling is 'dynamic', and the trainer computes"),
    "no factor": (
        {"rope_scaling": {"rope_type": "linear"}},
        "Its rope scaling 'linear' needs positive numbers, not factor=",
    ),
    "experts": (EXPERTS, "It is qwen3_moe, and the trainer builds dense text models only."),
}


@pytest.fixture(params=KINDS)
def unbuilt(tmp_path, request):
    """A folder of a model that the trainer can't build, and what is said of it."""
    changes, said = KINDS[request.param]
    cfg = tools["config"]()
    weights = tools["weights"](cfg)
    if request.param == "experts":
        for name in [name for name in weights if ".mlp." in name]:
            del weights[name]
        for layer in range(3):
            weights[f"model.layers.{layer}.mlp.gate.weight"] = torch.ones(4, 32, dtype=torch.bfloat16)
            for expert in range(4):
                for part, shape in (("gate", (8, 32)), ("up", (8, 32)), ("down", (32, 8))):
                    name = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                    weights[name] = torch.ones(shape, dtype=torch.bfloat16)
    return tools["write_folder"](tmp_path / "hf", cfg | changes, weights), said


def openclaw(*arguments: object):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_the_builder_says_it(unbuilt):
    folder, said = unbuilt
    arch = architecture_from_hf(folder)
    assert said in buildable(arch)[0][0]
    with pytest.raises(Findings, match="can't be built") as caught:
        transformer_config(arch, ParallelSizes(), torch.float32, recompute=False)
    assert said in str(caught.value)
    with pytest.raises(Findings, match="The trainer can't build there"):
        check_buildable(arch, "there")


def test_a_dry_run_says_it(unbuilt):
    folder, said = unbuilt
    shown = openclaw("train", "--profile", "tiny-cpu", "--dry-run", "--set", f"student.hf={folder}")
    assert shown.exit_code == 2
    assert f"The student can't be built. {said}" in shown.stderr
    of_teacher = ("--set", f"teacher.hf={folder}", "--set", "loss.w_opd=0")
    assert "can't be built" not in openclaw("train", "--profile", "tiny-cpu", "--dry-run", *of_teacher).stderr


def test_validate_says_it(unbuilt):
    folder, said = unbuilt
    shown = openclaw("--json", "validate", "--student", folder, "--teacher", folder)
    assert shown.exit_code == 1
    check = next(check for check in json.loads(shown.stdout)["checks"] if check["title"] == "The trainer builds both models")
    assert check["state"] == "problem"
    assert f"The student can't be built. {said}" in check["finding"]
    assert "The teacher can't be built." in check["finding"]
    assert check["remedy"]


def test_it_is_converted_all_the_same_with_a_note(unbuilt, tmp_path):
    folder, said = unbuilt
    plan = openclaw("--json", "convert-ckpt", folder, tmp_path / "td", "--dry-run")
    assert said in json.loads(plan.stdout)["not_trained"][0]
    done = openclaw("convert-ckpt", folder, tmp_path / "td")
    assert done.exit_code == 0, done.stderr
    assert f"It is converted for other trainers. {said}" in done.stderr
    assert "openclaw train" not in done.stdout
    refused = openclaw("convert-ckpt", folder, tmp_path / "x", "--verify", "logits")
    assert (refused.exit_code, (tmp_path / "x").exists()) == (1, False)
    assert said in refused.stderr


def test_what_is_built_is_said_to_be(tmp_path):
    cfg = tools["config"]()
    folder = tools["write_folder"](tmp_path / "hf", cfg, tools["weights"](cfg))
    assert buildable(architecture_from_hf(folder)) == []
    assert json.loads(openclaw("--json", "convert-ckpt", folder, tmp_path / "td", "--dry-run").stdout)["not_trained"] == []
    assert {name for name in FAMILIES if trained(name)} == {"qwen3", "qwen2", "llama"}
    assert set(ROPE_PARAMETERS) == {"linear", "llama3"}


def test_asking_imports_no_torch():
    code = "import sys, openclaw_core.models.buildable; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
