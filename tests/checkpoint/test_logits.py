"""Both sides built and run: equal logits for every family; what a bitwise round trip can't see is seen."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint import logits
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.logits import check_comparable, compare_logits
from openclaw_core.checkpoint.torch_dist import TorchDistReader, resolve
from openclaw_core.errors import Findings, UserError

HERE = Path(__file__).parent
COMPARED = {
    "qwen3": ({"num_hidden_layers": 2}, 1),
    "qwen2": ({"num_hidden_layers": 2, "tie_word_embeddings": False}, 1),
    "llama": ({"num_hidden_layers": 2, "tie_word_embeddings": False}, 2),
    "qwen3_vl": ("vision of test_megatron.py", 2),
    "qwen3_moe": ("mixed", 2),
    "qwen2_moe": ("qwen2", 1),
    "qwen3_vl_moe": ("vision", 1),
    "deepseek_v3": ("deepseek", 2),
}
"""Model type -> what is made of it, and the tensor-parallel size; test_support.py holds --list against this."""


def folder_of(model_type: str, make_hf, place: Path) -> Path:
    made, _ = COMPARED[model_type]
    if isinstance(made, dict):
        return make_hf(model_type, family=model_type, tokenizer=False, **made)
    if model_type == "qwen3_vl":
        runpy.run_path(str(HERE / "test_megatron.py"))["vision"](place)
        return place
    tools = runpy.run_path(str(HERE / "test_moe.py"))
    tools["model"](made).save_pretrained(place)
    if made == "vision":
        tools["as_released"](place / "model.safetensors")
    return place


@pytest.mark.parametrize("model_type", COMPARED)
def test_logits_agree(make_hf, tmp_path, model_type):
    tp = COMPARED[model_type][1]
    source = folder_of(model_type, make_hf, tmp_path / model_type)
    assert plan_conversion(source, tmp_path / "td").architecture.model_type.removesuffix("_text") == model_type
    convert(plan_conversion(source, tmp_path / "td", tp=tp))
    report = compare_logits(source, resolve(tmp_path / "td"), tp, made="torch_dist")
    assert report.equal
    assert len(report.texts) == 3
    assert all(one.difference < 5e-5 and one.same_top == 1 and one.tokens == 24 and one.scale > 0.01 for one in report.texts)


def test_an_expert_in_anothers_place_is_seen(make_hf, tmp_path):
    """The bits are all there, so only what is computed tells."""
    source = folder_of("qwen3_moe", make_hf, tmp_path / "hf")
    convert(plan_conversion(source, tmp_path / "td"))
    tensors = load_file(source / "model.safetensors")
    names = [f"model.layers.0.mlp.experts.{expert}.down_proj.weight" for expert in (0, 1)]
    tensors |= dict(zip(names, [tensors[name] for name in reversed(names)], strict=True))
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    assert not compare_logits(source, resolve(tmp_path / "td"), made="torch_dist").equal


def test_another_rope_base_is_seen(make_hf, tmp_path, monkeypatch):
    """The ranks read the config that they are told: here one with another base than transformers reads."""
    source = make_hf(tokenizer=False, num_hidden_layers=2)
    convert(plan_conversion(source, tmp_path / "td"))
    other = make_hf("other", tokenizer=False, num_hidden_layers=2, rope_theta=5e6)
    honest = logits._transformers
    monkeypatch.setattr(logits, "_transformers", lambda hf, *rest: honest(other, *rest))
    report = compare_logits(source, resolve(tmp_path / "td"), made="torch_dist")
    assert not report.equal


@pytest.mark.parametrize("to", ["torch_dist", "hf"])
def test_a_cast_is_no_difference(make_hf, tmp_path, to):
    """Rounding fp32 to bf16 moves logits by far more than the bound; both sides are rounded, so only mistakes are left."""
    source = make_hf(tokenizer=False, num_hidden_layers=2, dtype=torch.float32)
    arguments = [str(source), str(tmp_path / "td")]
    if to == "hf":
        convert(plan_conversion(source, tmp_path / "td"))
        arguments = [str(tmp_path / "td"), str(tmp_path / "back")]
    done = CliRunner().invoke(app, ["--json", "convert-ckpt", *arguments, "--dtype", "bf16", "--verify", "logits"])
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)["logits"]
    assert all(one["difference"] < 5e-5 for one in report["texts"])
    again = CliRunner().invoke(app, ["convert-ckpt", *arguments, "--verify-only", "--verify", "logits"])
    assert again.exit_code == 0, again.stderr


def test_fp8_blocks_are_compared_as_what_they_stand_for(make_hf, tmp_path):
    quantise = runpy.run_path(str(HERE / "test_special.py"))["quantise"]
    settings = {"quant_method": "fp8", "weight_block_size": [16, 16], "fmt": "e4m3", "activation_scheme": "dynamic"}
    source = make_hf(tokenizer=False, num_hidden_layers=2, change=lambda t: quantise(t, 16), quantization_config=settings)
    convert(plan_conversion(source, tmp_path / "td"))
    if importlib.util.find_spec("accelerate") is None:
        with pytest.raises(Findings, match=r"reads FP8 with accelerate, which isn't installed\. `pip install accelerate`"):
            compare_logits(source, resolve(tmp_path / "td"), made="torch_dist")
        return
    report = compare_logits(source, resolve(tmp_path / "td"), made="torch_dist")
    assert all(one.difference < 5e-5 for one in report.texts)


def test_a_checkpoint_that_cannot_be_loaded(make_hf, tmp_path):
    source = make_hf(tokenizer=False, num_hidden_layers=2)
    convert(plan_conversion(make_hf("other", tokenizer=False, num_hidden_layers=3), tmp_path / "td"))
    with pytest.raises(UserError, match="couldn't load or run"):
        compare_logits(source, resolve(tmp_path / "td"), made="torch_dist")


def test_what_cannot_be_compared_is_refused_with_every_reason(make_hf, tmp_path):
    plan = plan_conversion(make_hf(), tmp_path / "td")
    folder, arch = plan.config_folder, plan.architecture
    with pytest.raises(Findings, match="2 kv heads can't be split by tp=4"):
        check_comparable(folder, arch, 4)
    moved = {name.replace("decoder.layers.", "decoder.layers.0.") for name in plan.mapping.stored}
    with pytest.raises(Findings, match=r"another layout than is loaded here: there is no decoder\.layers\.self_attention"):
        check_comparable(folder, arch, 1, moved)
    yarn = dataclasses.replace(arch, rope_scaling={"rope_type": "yarn", "factor": 2.0})
    with pytest.raises(Findings, match=r"can't compare qwen3 here(.|\n)*Its rope scaling is 'yarn'"):
        check_comparable(folder, yarn, 1)
    tower = dataclasses.replace(arch, model_type="qwen3_vl_text", prefix="model.language_model.")
    with pytest.raises(Findings, match="qwen3_vl_text without its vision_config"):
        check_comparable(folder, tower, 1)
    assert torch.get_default_dtype() == torch.float32


def test_only_what_megatron_asks_for_is_said_to_be_comparable(make_hf, tmp_path):
    """The names that are checked beforehand are those that it then loads."""
    plan = plan_conversion(make_hf(), tmp_path / "td")
    convert(plan)
    check_comparable(plan.config_folder, plan.architecture, 1, TorchDistReader(resolve(tmp_path / "td")).contents.tensors)
