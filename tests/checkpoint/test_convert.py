"""Round trips: bits, padding, layouts, dtypes, what is carried and hashed, steps of a run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.dist_writer import Part
from openclaw_core.checkpoint.manifest import carry, read_manifest
from openclaw_core.checkpoint.recheck import recheck
from openclaw_core.checkpoint.torch_dist import TorchDistReader, resolve
from openclaw_core.errors import Findings, UserError


def run(source: Path, target: Path, *, overwrite: bool = False, **options):
    return convert(plan_conversion(source, target, **options), overwrite=overwrite)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_round_trip_is_exact(make_hf, read_hf, tmp_path, family, tied, dtype):
    source = make_hf(family=family, tie_word_embeddings=tied, dtype=dtype, shards=1 if tied else 3)
    there = run(source, tmp_path / "td", tp=2)
    back = run(tmp_path / "td", tmp_path / "back")
    assert same(read_hf(source), read_hf(tmp_path / "back"))
    assert all(check.equal for check in (*there.checks, *back.checks))
    assert {check.name for check in there.checks} == set(read_hf(source))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (source / name).read_bytes() == (tmp_path / "back" / name).read_bytes()
    assert (
        json.loads((source / "config.json").read_text()).items()
        <= {**json.loads((tmp_path / "back" / "config.json").read_text()), "torch_dtype": "bfloat16"}.items()
    )


@pytest.mark.parametrize(("tp", "rows"), [(1, 256), (2, 256), (3, 384), (4, 512)])
def test_vocabulary_is_padded_with_zeros_and_comes_back_without(make_hf, read_hf, tmp_path, tp, rows):
    source = make_hf(tie_word_embeddings=False)
    run(source, tmp_path / "td", tp=tp)
    reader = TorchDistReader(resolve(tmp_path / "td"))
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        assert reader.contents.tensors[name].shape == (rows, 32)
        assert not reader.read(name, (200, 0), (rows - 200, 32)).any()
    run(tmp_path / "td", tmp_path / "back")
    assert read_hf(tmp_path / "back")["lm_head.weight"].shape == (200, 32)


def test_layers_are_stacked_as_megatron_stacks_them(make_hf, read_hf, tmp_path):
    source = make_hf()
    run(source, tmp_path / "td")
    reader, hf = TorchDistReader(resolve(tmp_path / "td")), read_hf(source)
    p = "model.layers.2.self_attn."
    qkv = reader.read("decoder.layers.self_attention.linear_qkv.weight", (2, 0, 0), (1, 128, 32))[0]
    q, k, v = (hf[p + f"{x}_proj.weight"] for x in "qkv")
    assert torch.equal(qkv, torch.cat([q[:32], k[:16], v[:16], q[32:], k[16:], v[16:]]))
    fc1 = reader.read("decoder.layers.mlp.linear_fc1.weight", (2, 40, 0), (1, 16, 32))[0]
    assert torch.equal(
        fc1, torch.cat([hf["model.layers.2.mlp.gate_proj.weight"][40:], hf["model.layers.2.mlp.up_proj.weight"][:8]])
    )


def test_manifest_names_and_hashes_everything(make_hf, read_hf, tmp_path):
    source = make_hf()
    run(source, tmp_path / "td", tp=4)
    manifest = read_manifest(tmp_path / "td")
    assert manifest is not None
    assert manifest.vocabulary == {"real": 200, "padded": 512}
    for name, tensor in read_hf(source).items():
        assert manifest.tensors[name]["sha256"] == hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()
    for name, digest in manifest.companions.items():
        assert hashlib.sha256((tmp_path / "td" / "hf" / name).read_bytes()).hexdigest() == digest
    assert set(manifest.companions) == {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}


def test_named_chat_templates_are_carried(make_hf, tmp_path):
    """transformers keeps them in a folder of their own."""
    source = make_hf()
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    run(source, tmp_path / "td")
    run(tmp_path / "td", tmp_path / "back")
    name = "additional_chat_templates/tool_use.jinja"
    for folder in (tmp_path / "td" / "hf", tmp_path / "back"):
        assert (folder / name).read_text() == "{{ tools }}"
    for folder in (tmp_path / "td", tmp_path / "back"):
        assert read_manifest(folder).companions[name] == hashlib.sha256(b"{{ tools }}").hexdigest()
        run(source if folder.name == "td" else tmp_path / "td", folder, overwrite=True)
    (tmp_path / "back" / name).write_text("other")
    assert recheck(tmp_path / "back").companions[name] is False
    carry(tmp_path / "td", tmp_path / "step")
    assert (tmp_path / "step" / "hf" / name).is_file()


def test_named_chat_templates_are_files_of_the_model(make_hf, tmp_path):
    (tmp_path / "secret").write_text("key")
    source = make_hf("models/snapshots/1")
    (source / "additional_chat_templates").mkdir()
    template = source / "additional_chat_templates" / "rag.jinja"
    template.symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"rag\.jinja: a link out of"):
        plan_conversion(source, tmp_path / "td")
    template.unlink()
    (tmp_path / "models" / "blobs").mkdir()
    (tmp_path / "models" / "blobs" / "0123").write_text("{{ rag }}")
    template.symlink_to("../../../blobs/0123")
    run(source, tmp_path / "td")
    copy = tmp_path / "td" / "hf" / "additional_chat_templates" / "rag.jinja"
    assert (copy.is_symlink(), copy.read_text()) == (False, "{{ rag }}")
    template.unlink()
    template.mkdir()
    with pytest.raises(UserError, match=r"rag\.jinja: not a file"):
        plan_conversion(source, tmp_path / "td2")


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16)])
def test_dtype_is_cast_and_the_config_says_so(make_hf, read_hf, tmp_path, name, dtype):
    source = make_hf()
    run(source, tmp_path / "td", dtype=name)
    run(tmp_path / "td", tmp_path / "back")
    back = read_hf(tmp_path / "back")
    assert all(torch.equal(tensor.to(dtype), back[key]) and back[key].dtype == dtype for key, tensor in read_hf(source).items())
    assert json.loads((tmp_path / "back" / "config.json").read_text())["torch_dtype"] == str(dtype).removeprefix("torch.")


def test_double_precision_is_cast_when_asked_for(make_hf, read_hf, tmp_path):
    source = make_hf(dtype=torch.float64)
    with pytest.raises(Findings, match=r"is torch\.float64\. Pass --dtype"):
        plan_conversion(source, tmp_path / "td")
    run(source, tmp_path / "td", dtype="fp32")
    run(tmp_path / "td", tmp_path / "back")
    back = read_hf(tmp_path / "back")
    assert all(torch.equal(tensor.float(), back[name]) for name, tensor in read_hf(source).items())


def test_a_value_that_float16_cannot_hold_is_an_error_both_ways(make_hf, tmp_path):
    source = make_hf()
    tensors = load_file(source / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float().index_fill(0, torch.tensor([3]), 1e6)
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"holds 1e\+06, more than float16 can"):
        run(source, tmp_path / "half", dtype="fp16")
    run(source, tmp_path / "td")
    with pytest.raises(UserError, match=r"model\.norm\.weight holds 1e\+06, more than float16 can"):
        run(tmp_path / "td", tmp_path / "back", dtype="fp16")


@pytest.mark.parametrize("split", [False, True])
def test_layouts_with_a_tensor_per_layer_and_optimizer_state(make_hf, read_hf, tmp_path, split, write_dist):
    """What megatron writes with singleton_local_shards (no stacking, gate and up apart), and with local norm names."""
    source = make_hf()
    run(source, tmp_path / "td")
    reader = TorchDistReader(resolve(tmp_path / "td"))
    shapes, parts = {}, []
    for name, stored in reader.contents.tensors.items():
        for layer in range(3) if name.startswith("decoder.layers.") else [None]:
            box = (0,) * len(stored.shape), stored.shape
            if layer is not None:
                box = (layer, *box[0][1:]), (1, *box[1][1:])
            tensor = reader.read(name, *box).clone()
            new = name
            if layer is not None:
                tensor, new = tensor[0], name.replace("layers.", f"layers.{layer}.")
            new = new.replace("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight") if split else new
            pieces = {new: tensor}
            if split and new.endswith("linear_fc1.weight"):
                pieces = dict(zip((f"{new}_w", f"{new}_v"), tensor.chunk(2), strict=True))
            for key, value in pieces.items():
                for prefix in ("", "optimizer.state.exp_avg."):
                    shapes[prefix + key] = (tuple(value.shape), value.dtype)
                    parts.append(Part(prefix + key, (0,) * value.dim(), tuple(value.shape), lambda value=value: value))
    write_dist(tmp_path / "other", shapes, parts, {}, {})
    done = run(tmp_path / "other", tmp_path / "back", hf_config=source)
    assert same(read_hf(source), read_hf(tmp_path / "back"))
    assert "optimizer" in next(iter(done.plan.left_out))


def test_no_model_library_is_needed(make_hf, tmp_path):
    """The config is read as JSON, so a model type needn't be known to the installed transformers."""
    program = (
        "import sys\nfrom openclaw_core.checkpoint.convert import convert, plan_conversion\n"
        f"convert(plan_conversion({str(make_hf())!r}, {str(tmp_path / 'td')!r}))\n"
        "sys.exit(' '.join({'transformers', 'megatron', 'torch.distributed.checkpoint'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_a_runs_checkpoint_by_step(make_hf, read_hf, tmp_path):
    source = make_hf()
    run(source, tmp_path / "td")
    for step in (10, 20):
        folder = tmp_path / "run" / "checkpoints" / f"step-{step:06d}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(tmp_path / "td" / "release"), str(folder)], check=True)
        carry(tmp_path / "td", folder)
    (tmp_path / "run" / "run.json").write_text("{}")
    assert plan_conversion(tmp_path / "run", tmp_path / "x").source.root.name == "step-000020"
    done = run(tmp_path / "run", tmp_path / "x", step=10)
    assert done.plan.source.root.name == "step-000010"
    assert same(read_hf(source), read_hf(tmp_path / "x"))
    with pytest.raises(UserError, match="Saved steps: 10, 20"):
        plan_conversion(tmp_path / "run", tmp_path / "y", step=15)
