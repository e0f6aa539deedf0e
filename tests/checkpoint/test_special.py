"""FP8 in blocks, nested text towers with a vision tower beside them, and families that are refused by name."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.families import RULES
from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import FAMILIES, REFUSED


def quantise(tensors: dict[str, torch.Tensor], block: int) -> dict[str, torch.Tensor]:
    """The same with every projection in FP8 blocks; returns what those blocks stand for, computed element by element."""
    meant = {}
    for name, tensor in list(tensors.items()):
        if not name.endswith("proj.weight"):
            meant[name] = tensor
            continue
        rows, columns = (-(-size // block) for size in tensor.shape)
        scale = torch.rand(rows, columns) * 0.01 + 0.001
        values = (tensor.float() * 100).to(torch.float8_e4m3fn)
        whole = scale.repeat_interleave(block, 0).repeat_interleave(block, 1)[: tensor.shape[0], : tensor.shape[1]]
        meant[name] = (values.float() * whole).to(torch.bfloat16)
        tensors[name], tensors[name + "_scale_inv"] = values, scale
    return meant


def test_fp8_blocks_are_read_as_bf16(make_hf, read_hf, tmp_path):
    meant = {}
    settings = {"quant_method": "fp8", "weight_block_size": [20, 20], "fmt": "e4m3"}
    source = make_hf(change=lambda tensors: meant.update(quantise(tensors, 20)), quantization_config=settings)
    done = convert(plan_conversion(source, tmp_path / "td"))
    assert all(check.equal and check.dtype == "bfloat16" for check in done.checks)
    convert(plan_conversion(tmp_path / "td", tmp_path / "back"))
    back = read_hf(tmp_path / "back")
    assert back.keys() == meant.keys()
    assert all(torch.equal(back[name], meant[name]) for name in meant)
    assert "quantization_config" not in json.loads((tmp_path / "back" / "config.json").read_text())


def test_fp8_tensors_that_are_left_out_take_their_scales_along(make_hf, read_hf, tmp_path):
    meant = {}

    def change(tensors):
        extra = {"model.layers.3.mtp.eh_proj.weight": torch.randn(40, 32).to(torch.bfloat16)}
        tensors |= extra | {"model.layers.3.mtp.norm.weight": torch.ones(32)}
        meant.update(quantise(tensors, 20))

    settings = {"quant_method": "fp8", "weight_block_size": [20, 20]}
    source = make_hf(change=change, quantization_config=settings)
    with pytest.raises(Findings) as caught:
        plan_conversion(source, tmp_path / "td")
    assert "_scale_inv" not in str(caught.value)
    done = CliRunner().invoke(app, ["--json", "convert-ckpt", str(source), str(tmp_path / "td"), "--allow", "model.layers.3.*"])
    assert done.exit_code == 0, done.stderr
    left = {name: "allowed to be left out" for name in meant if name.startswith("model.layers.3.")}
    assert json.loads(done.stdout)["left_out"] == left
    assert len(left) == 2
    convert(plan_conversion(tmp_path / "td", tmp_path / "back"))
    back = read_hf(tmp_path / "back")
    assert back.keys() == meant.keys() - left.keys()
    assert all(torch.equal(back[name], meant[name]) for name in back)


def test_fp8_scales_must_fit(make_hf, tmp_path):
    def change(tensors):
        quantise(tensors, 20)
        del tensors["model.layers.0.mlp.up_proj.weight_scale_inv"]
        tensors["model.norm.weight_scale_inv_scale_inv"] = torch.ones(1)

    source = make_hf(change=change, quantization_config={"quant_method": "fp8", "weight_block_size": [20, 20]})
    with pytest.raises(Findings, match=r"up_proj.weight_scale_inv is missing(.|\n)*") as caught:
        plan_conversion(source, tmp_path / "td")
    assert "scales nothing" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "scale", "said"),
    [
        ("model.norm.weight", torch.ones(2), r"model\.norm\.weight has shape \[32\]; blocks of \[20, 20\] need two axes"),
        ("model.embed_tokens.weight", torch.ones(10, 2, dtype=torch.int32), "weight_scale_inv holds int32, no fractions"),
    ],
)
def test_fp8_that_blocks_cannot_scale(make_hf, tmp_path, name, scale, said):
    def change(tensors):
        tensors |= {name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}

    source = make_hf(change=change, quantization_config={"quant_method": "fp8", "weight_block_size": [20, 20]})
    with pytest.raises(Findings, match=said):
        plan_conversion(source, tmp_path / "td")


@pytest.mark.parametrize("block", [["a", 128], [0, 0], [128], 128])
def test_blocks_of_no_size_are_refused(make_hf, tmp_path, block):
    source = make_hf(quantization_config={"quant_method": "fp8", "weight_block_size": block})
    with pytest.raises(UserError, match=r"the weights are quantised \(fp8, blocks"):
        plan_conversion(source, tmp_path / "td")


def test_other_quantisation_is_refused(make_hf, tmp_path):
    with pytest.raises(UserError, match="gptq"):
        plan_conversion(make_hf(quantization_config={"quant_method": "gptq", "bits": 4}), tmp_path / "td")


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_what_is_refused_is_refused_by_name_with_a_reason(make_hf, tmp_path, model_type):
    source = make_hf()
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(
        json.dumps({"model_type": model_type.removesuffix("_text"), "text_config": config | {"model_type": model_type}})
    )
    with pytest.raises(UserError) as caught:
        plan_conversion(source, tmp_path / "td")
    assert model_type in str(caught.value)
    assert REFUSED[model_type] in str(caught.value)


def test_why_linear_attention_is_refused():
    """The release's weights aren't zero-centred, megatron's would be: w - 1 in bf16 doesn't come back as w."""
    w = (torch.arange(1, 400) / 200).to(torch.bfloat16)
    assert not torch.equal((w - 1) + 1, w)


def test_custom_code_is_told_carried_and_never_run(make_hf, tmp_path):
    source = make_hf(auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    (source / "modeling_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    shown = CliRunner().invoke(app, ["convert-ckpt", str(source), str(tmp_path / "td"), "--dry-run"])
    assert "modeling_own.py: copied, never run" in shown.stdout
    convert(plan_conversion(source, tmp_path / "td"))
    convert(plan_conversion(tmp_path / "td", tmp_path / "back"))
    assert (tmp_path / "back" / "modeling_own.py").read_bytes() == (source / "modeling_own.py").read_bytes()
    assert "modeling_own.py" in json.loads((tmp_path / "back" / "openclaw.json").read_text())["companions"]
    assert not (tmp_path / "ran").exists()


def test_every_family_has_rules():
    assert set(FAMILIES.values()) == set(RULES)
