"""Round trips, padding, dtypes, what is refused, and what is left behind when something fails."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint import atomic, jobs, sides
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.dist_writer import Part, write_folder
from openclaw_core.checkpoint.manifest import carry, read_manifest
from openclaw_core.checkpoint.recheck import recheck
from openclaw_core.checkpoint.torch_dist import TorchDistReader, resolve
from openclaw_core.errors import Findings, UsageError, UserError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def run(source: Path, target: Path, *, overwrite: bool = False, verify: bool = True, **options):
    return convert(plan_conversion(source, target, **options), overwrite=overwrite, verify=verify)


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


def test_a_companion_that_would_be_lost_is_an_error_before_anything_is_written(make_hf, tmp_path):
    source = make_hf()
    (source / "tokenizer.json").unlink()
    (source / "tokenizer.json").mkdir()
    (source / "chat_template.jinja").symlink_to("gone")
    with pytest.raises(UserError, match=r"chat_template\.jinja, .*tokenizer\.json: not a file, or a link to one that is gone"):
        plan_conversion(source, tmp_path / "td")


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


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("cast", [None, "bf16"])
def test_numbers_that_need_scales_are_no_weights(make_hf, tmp_path, dtype, cast):
    def change(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"].to(dtype)

    with pytest.raises(Findings, match=r"stand for weights only with scales(.|\n)*model\.layers\.1\.mlp\.up_proj\.weight is"):
        plan_conversion(make_hf(change=change), tmp_path / "td", dtype=cast)


def test_double_precision_is_cast_when_asked_for(make_hf, read_hf, tmp_path):
    source = make_hf(dtype=torch.float64)
    with pytest.raises(Findings, match=r"is torch\.float64\. Pass --dtype"):
        plan_conversion(source, tmp_path / "td")
    run(source, tmp_path / "td", dtype="fp32")
    run(tmp_path / "td", tmp_path / "back")
    back = read_hf(tmp_path / "back")
    assert all(torch.equal(tensor.float(), back[name]) for name, tensor in read_hf(source).items())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("generation_config.json", "nope", "can't be read as JSON"),
        ("tokenizer_config.json", "{", "can't be read as JSON"),
        ("tokenizer.json", '{"model": {"vocab": {"a": "x"}}}', "it has ids that are no numbers"),
    ],
)
def test_a_damaged_companion_is_an_error_before_anything_is_written(make_hf, tmp_path, name, text, said):
    source = make_hf()
    (source / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name}.*{said}"):
        plan_conversion(source, tmp_path / "td")


@pytest.mark.parametrize("layers", [2, 4])
def test_a_config_with_other_layers_is_refused(make_hf, tmp_path, layers):
    source = make_hf()
    cfg = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**cfg, "num_hidden_layers": layers}))
    with pytest.raises(Findings, match=r"11 unknown" if layers == 2 else r"11 missing"):
        plan_conversion(source, tmp_path / "td")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("intermediate_size", 47, r"gate_proj.weight is \[48, 32\], the architecture says \[47, 32\]"),
        ("head_dim", 8, r"q_proj.weight is \[64, 32\], the architecture says \[32, 32\]"),
        ("vocab_size", 201, r"embed_tokens.weight is \[200, 32\], the architecture says \[201, 32\]"),
    ],
)
def test_a_config_with_other_sizes_is_refused_with_both_values(make_hf, tmp_path, key, value, said):
    source = make_hf()
    cfg = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**cfg, key: value}))
    with pytest.raises(Findings, match=said):
        plan_conversion(source, tmp_path / "td")


def test_unknown_and_missing_tensors_are_named(make_hf, tmp_path):
    def change(tensors):
        tensors["model.layers.1.self_attn.gate.weight"] = torch.zeros(3)
        del tensors["model.layers.2.mlp.up_proj.weight"]

    source = make_hf(change=change)
    with pytest.raises(Findings) as caught:
        plan_conversion(source, tmp_path / "td")
    assert "model.layers.1.self_attn.gate.weight" in str(caught.value)
    assert "model.layers.2.mlp.up_proj.weight" in str(caught.value)
    assert not (tmp_path / "td").exists()


def test_an_allow_pattern_is_the_only_way_past(make_hf, tmp_path):
    source = make_hf(change=lambda tensors: tensors.update({"mtp.norm.weight": torch.zeros(3)}))
    with pytest.raises(Findings, match=r"mtp\.norm\.weight"):
        plan_conversion(source, tmp_path / "td")
    plan = plan_conversion(source, tmp_path / "td", allow=("mtp.*",))
    assert plan.left_out == {"mtp.norm.weight": "allowed to be left out"}


def test_heads(make_hf, tmp_path):
    def copy(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    def other(tensors):
        copy(tensors)
        tensors["lm_head.weight"][199, 31] += 1

    assert "lm_head.weight" in plan_conversion(make_hf("copy", change=copy), tmp_path / "td").left_out
    with pytest.raises(UserError, match="differs from"):
        plan_conversion(make_hf("other", change=other), tmp_path / "td")
    with pytest.raises(UserError, match="there is no lm_head"):
        plan_conversion(make_hf("none", tie_word_embeddings=False, change=lambda t: t.pop("lm_head.weight")), tmp_path / "td")


@pytest.mark.parametrize(("base", "good"), [(1e6, True), (5e6, False)])
def test_stored_rope_frequencies_must_fit_the_base(make_hf, tmp_path, base, good):
    def change(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = base ** -(torch.arange(0, 16, 2).float() / 16)

    source = make_hf(change=change)
    if good:
        assert len(plan_conversion(source, tmp_path / "td").left_out) == 1
        return
    with pytest.raises(UserError, match="rope base 1e\\+06"):
        plan_conversion(source, tmp_path / "td")


def test_expectations_confirm_and_never_override(make_hf, tmp_path):
    source = make_hf()
    plan_conversion(source, tmp_path / "td", expect={"rope_theta": "1000000", "tied": "true", "layers": "3", "family": "qwen3"})
    plan_conversion(source, tmp_path / "td", expect={"dense_layers": "[]", "mla": "null", "rope_scaling": "null"})
    with pytest.raises(Findings, match=r"rope_theta: expected 5000000, config\.json says 1000000\.0"):
        plan_conversion(source, tmp_path / "td", expect={"rope_theta": "5000000"})
    with pytest.raises(UsageError, match="Unknown architecture field ropetheta"):
        plan_conversion(source, tmp_path / "td", expect={"ropetheta": "1"})


def test_a_tokenizer_past_the_embedding_is_refused(make_hf, tmp_path):
    source = make_hf()
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["added_tokens"][1]["id"] = 200
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="id 200, the embedding 200 rows"):
        plan_conversion(source, tmp_path / "td")


def test_an_existing_target_is_refused_and_kept(make_hf, tmp_path):
    source = make_hf()
    run(source, tmp_path / "td")
    before = (tmp_path / "td" / "openclaw.json").read_text()
    with pytest.raises(UserError, match="exists"):
        run(source, tmp_path / "td", tp=4)
    assert (tmp_path / "td" / "openclaw.json").read_text() == before
    run(source, tmp_path / "td", tp=4, overwrite=True)
    assert read_manifest(tmp_path / "td").vocabulary["padded"] == 512
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "td"]


@pytest.mark.parametrize("name", [".td.partial", ".td.old"])
@pytest.mark.parametrize("link", [True, False])
def test_what_lies_where_leftovers_would_is_kept(make_hf, tmp_path, name, link):
    source, place = make_hf(), tmp_path / name
    if link:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "diary.txt").write_text("dear")
        place.symlink_to(tmp_path / "home")
    else:
        place.write_text("dear")
    with pytest.raises(UserError, match=r"is in the way: no folder that a conversion left\. Move it away"):
        run(source, tmp_path / "td")
    assert (place / "diary.txt" if link else place).read_text() == "dear"
    assert not (tmp_path / "td").exists()


def test_overwrite_never_removes_what_is_no_checkpoint(make_hf, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("dear")
    with pytest.raises(UserError, match="isn't a checkpoint"):
        run(make_hf(), tmp_path / "home", overwrite=True)
    assert (tmp_path / "home" / "diary.txt").read_text() == "dear"


def test_overwrite_never_removes_other_folders_nor_the_source_by_another_name(make_hf, tmp_path):
    source = make_hf()
    run(source, tmp_path / "td")
    (tmp_path / "td" / "thesis").mkdir()
    with pytest.raises(UserError, match=r"folders that no checkpoint has \(thesis\)"):
        run(source, tmp_path / "td", overwrite=True)
    (tmp_path / "config-only").mkdir()
    (tmp_path / "config-only" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="isn't a checkpoint"):
        run(source, tmp_path / "config-only", overwrite=True)
    (tmp_path / "link").symlink_to(source.parent)
    with pytest.raises(UsageError, match="lie in each other"):
        run(source, tmp_path / "link" / source.name, overwrite=True)
    (tmp_path / "alias").symlink_to(tmp_path / "td")
    with pytest.raises(UsageError, match="is a link"):
        run(source, tmp_path / "alias", overwrite=True)


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


def test_a_tensor_that_differs_after_writing_fails_and_leaves_the_old_one(make_hf, tmp_path, monkeypatch):
    source = make_hf()
    run(source, tmp_path / "td")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "td").rglob("*"))
    honest = sides.write_file

    def flipping(path, *rest):
        places = honest(path, *rest)
        place = next(p for p in places if p.name == "decoder.layers.mlp.linear_fc2.weight" and p.offsets[0] == 1)
        with path.open("r+b") as file:
            file.seek(place.start + place.length // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        return places

    monkeypatch.setattr(sides, "write_file", flipping)
    with pytest.raises(Findings, match=r"1 of 35 tensors differ(.|\n)*model\.layers\.1\.mlp\.down_proj\.weight"):
        run(source, tmp_path / "td", overwrite=True)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "td").rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "td"]


@pytest.mark.parametrize("direction", ["import", "export"])
def test_a_source_that_changes_meanwhile_is_told(make_hf, tmp_path, direction):
    source = make_hf()
    if direction == "export":
        run(source, tmp_path / "td")
        source = tmp_path / "td"
    written = next(path for path in source.rglob("*") if path.suffix in (".safetensors", ".distcp"))

    def change(stage, done, total):
        os.utime(written, (1, 1))

    with pytest.raises(UserError, match=r"changed while it was converted; .*made wasn't written"):
        convert(plan_conversion(source, tmp_path / "made"), progress=change)
    assert not list(tmp_path.glob("*made*"))


def test_a_killed_conversion_leaves_no_target_and_the_next_one_starts_anew(make_hf, tmp_path):
    source = make_hf()
    program = (
        "import sys, time\nfrom openclaw_core.checkpoint.convert import convert, plan_conversion\n"
        f"plan = plan_conversion({str(source)!r}, {str(tmp_path / 'td')!r})\n"
        "def wait(stage, done, total):\n    print(stage, flush=True)\n    time.sleep(60)\n"
        "convert(plan, progress=wait)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline().strip() == "write"
    with pytest.raises(UserError, match="being written by another conversion"):
        run(source, tmp_path / "td")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "td").exists()
    with pytest.raises(UserError, match="interrupted conversion"):
        plan_conversion(tmp_path / ".td.partial", tmp_path / "x")
    run(source, tmp_path / "td")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "td"]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 40 MB; None where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_seen_before_writing(make_hf, tmp_path, small_disk, monkeypatch):
    if small_disk is None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=40 * 2**20))
    source, target = make_hf(), (small_disk or tmp_path) / "deep" / "td"
    said = f"{target.parent} has 0.0 GB free, the result takes 0.1 GB. Make room or choose another disk."
    for dry in (["--dry-run"], []):
        done = CliRunner().invoke(app, ["convert-ckpt", str(source), str(target), *dry])
        assert (done.exit_code, bool(done.stdout)) == (1, bool(dry))
        assert said in done.stderr
        assert not target.exists()
        assert not list(target.parent.glob(".*"))


def test_a_disk_that_fills_up_on_the_way_leaves_what_can_be_gone_on_from(make_hf, read_hf, tmp_path, small_disk, monkeypatch):
    """Another process takes the room that was free when the conversion began: here nothing looks, and the disk is small."""
    if small_disk is None:
        pytest.skip("no small disk can be mounted here")
    source = make_hf(vocab_size=80_000, hidden_size=64, num_hidden_layers=12, intermediate_size=4096)
    monkeypatch.setattr(atomic, "check_room", lambda target, needed: None)
    monkeypatch.setattr(jobs.split_jobs, "__defaults__", (4 * 2**20,))
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 20 * 2**20)
    done = CliRunner().invoke(app, ["convert-ckpt", str(source), str(small_disk / "td")])
    assert done.exit_code == 1
    remedy = "Make room and convert again; the same command goes on where it was."
    assert done.stderr == f"error: {small_disk} has no room left; td wasn't written. {remedy}\n"
    assert not (small_disk / "td").exists()
    filler.unlink()
    assert run(source, small_disk / "td").kept
    run(small_disk / "td", tmp_path / "back")
    assert same(read_hf(source), read_hf(tmp_path / "back"))


def test_places_inside_each_other_and_the_same_kind_are_refused(make_hf, tmp_path):
    source = make_hf()
    with pytest.raises(UsageError, match="lie in each other"):
        plan_conversion(source, source / "td")
    with pytest.raises(UsageError, match="already is a Hugging Face folder"):
        plan_conversion(source, tmp_path / "x", to="hf")


@pytest.mark.parametrize("split", [False, True])
def test_layouts_with_a_tensor_per_layer_and_optimizer_state(make_hf, read_hf, tmp_path, split):
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
    write_folder(tmp_path / "other", shapes, parts, {}, {})
    done = run(tmp_path / "other", tmp_path / "back", hf_config=source)
    assert same(read_hf(source), read_hf(tmp_path / "back"))
    assert "optimizer" in next(iter(done.plan.left_out))


def test_a_torch_dist_without_a_config_asks_for_it(make_hf, tmp_path):
    source = make_hf()
    run(source, tmp_path / "td")
    (tmp_path / "td" / "release").rename(tmp_path / "bare")
    with pytest.raises(UserError, match="--hf-config"):
        plan_conversion(tmp_path / "bare", tmp_path / "back")
    with pytest.raises(Findings, match="tensors don't match"):
        plan_conversion(tmp_path / "bare", tmp_path / "back", hf_config=make_hf("wrong", num_hidden_layers=2))
    assert run(tmp_path / "bare", tmp_path / "back", hf_config=source).checks


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope_theta": 5e6}, r"rope_theta: .*/other says 5000000\.0, megatron's arguments says 1000000"),
        ({"rms_norm_eps": 1e-5}, r"norm_eps: .*/other says 1e-05, megatron's arguments says 1e-06"),
        ({"rope_scaling": LLAMA3}, r"rope_scaling: .*'factor': 8\.0.*, megatron's arguments says None"),
        ({}, None),
    ],
)
def test_an_export_with_another_models_config_is_refused(make_hf, tmp_path, changes, said):
    """The tensors fit it all the same: only what megatron wrote beside them tells."""
    run(make_hf(), tmp_path / "td")
    arguments = {"rotary_base": 1000000, "norm_epsilon": 1e-6, "use_rope_scaling": False, "num_layers": 3, "num_experts": None}
    torch.save({"args": Namespace(**arguments)}, tmp_path / "td" / "release" / "common.pt")
    (tmp_path / "td" / "release").rename(tmp_path / "bare")
    other = make_hf("other", **changes)
    if said is None:
        plan_conversion(tmp_path / "bare", tmp_path / "x", hf_config=other)
        return
    with pytest.raises(Findings, match=said):
        plan_conversion(tmp_path / "bare", tmp_path / "x", hf_config=other)


def test_a_config_that_contradicts_the_manifest_is_refused(make_hf, tmp_path):
    run(make_hf(), tmp_path / "td")
    with pytest.raises(Findings, match=r"rope_theta: .*/other says 5000000\.0, the manifest says 1000000\.0"):
        plan_conversion(tmp_path / "td", tmp_path / "x", hf_config=make_hf("other", rope_theta=5e6))


def test_no_model_library_is_needed(make_hf, tmp_path):
    """The config is read as JSON, so a model type needn't be known to the installed transformers."""
    program = (
        "import sys\nfrom openclaw_core.checkpoint.convert import convert, plan_conversion\n"
        f"convert(plan_conversion({str(make_hf())!r}, {str(tmp_path / 'td')!r}))\n"
        "sys.exit(' '.join({'transformers', 'megatron', 'torch.distributed.checkpoint'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_the_estimate_of_memory_does_not_grow_with_the_model(make_hf, tmp_path):
    small, large = (plan_conversion(make_hf(str(n), num_hidden_layers=n), tmp_path / "td") for n in (2, 8))
    assert large.nbytes > 2 * small.nbytes
    assert large.peak_estimate == small.peak_estimate


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


def test_a_dry_plan_is_quick(make_hf, tmp_path):
    started = time.monotonic()
    plan = plan_conversion(make_hf(), tmp_path / "td")
    assert plan.nbytes == sum(2 * int(torch.tensor(shape).prod()) for shape in plan.mapping.stored.values())
    assert time.monotonic() - started < 2
    assert not (tmp_path / "td").exists()
