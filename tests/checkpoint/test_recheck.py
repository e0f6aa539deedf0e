"""Existing conversions verified again: against their source, against their manifest, and what changed is named."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.manifest import carry
from openclaw_core.checkpoint.recheck import recheck
from openclaw_core.checkpoint.torch_dist import TorchDistReader, resolve
from openclaw_core.errors import Findings, UsageError, UserError


def flip(folder, name):
    """One bit of a stored tensor."""
    place = TorchDistReader(folder).contents.tensors[name].chunks[0]
    with (folder / place.file).open("r+b") as file:
        file.seek(place.start + place.length // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


@pytest.fixture
def both(make_hf, tmp_path):
    source = make_hf(tie_word_embeddings=False)
    convert(plan_conversion(source, tmp_path / "td", tp=4))
    convert(plan_conversion(tmp_path / "td", tmp_path / "back"))
    return source


@pytest.mark.parametrize("target", ["td", "back"])
@pytest.mark.parametrize("alone", [True, False])
def test_what_is_as_it_was_is_equal(both, tmp_path, target, alone):
    if alone:
        shutil.rmtree(both)
        if target == "back":
            shutil.rmtree(tmp_path / "td")
    found = recheck(tmp_path / target, None if alone else (both if target == "td" else tmp_path / "td"))
    assert (found.source is None) == alone
    assert found.hashed
    assert len(found.checks) == 36
    assert not found.problems


@pytest.mark.parametrize("alone", [True, False])
def test_a_flipped_bit_is_named(both, tmp_path, alone):
    flip(resolve(tmp_path / "td"), "decoder.layers.mlp.linear_fc2.weight")
    if alone:
        shutil.rmtree(both)
    assert recheck(tmp_path / "td").problems == [("model.layers.0.mlp.down_proj.weight differs.", "")]


def manifest_of(folder, change):
    path = folder / "openclaw.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("alone", [True, False])
def test_what_the_manifest_and_the_checkpoint_dont_share_is_named(both, tmp_path, alone):
    """A tensor without a hash isn't equal to anything, and one that is only listed is gone."""
    gone = {"shape": [3], "dtype": "bfloat16", "sha256": "0"}
    manifest_of(tmp_path / "td", lambda value: value["tensors"].pop("model.norm.weight"))
    manifest_of(tmp_path / "td", lambda value: value["tensors"].update(phantom=gone))
    if alone:
        shutil.rmtree(both)
    assert [what for what, _ in recheck(tmp_path / "td").problems] == ["model.norm.weight differs.", "phantom differs."]


def test_a_source_that_changed_is_told_from_a_conversion_that_did(both, tmp_path):
    tensors = load_file(both / "model.safetensors")
    tensors["model.norm.weight"][3] += 1
    save_file(tensors, both / "model.safetensors", {"format": "pt"})
    done = CliRunner().invoke(app, ["convert-ckpt", str(tmp_path / "td"), "--verify-only"])
    assert done.exit_code == 1
    assert "td is what was converted; its source isn't any more." in done.stderr
    assert "model.norm.weight differs from the source, but has its hash: the source changed." in done.stderr
    flip(resolve(tmp_path / "td"), "decoder.layers.mlp.linear_fc2.weight")
    done = CliRunner().invoke(app, ["convert-ckpt", str(tmp_path / "td"), "--verify-only"])
    assert "td isn't what was converted. Convert it again." in done.stderr
    assert "model.layers.0.mlp.down_proj.weight differs." in done.stderr


def test_where_the_source_was_is_something_else_by_now(both, tmp_path):
    shutil.rmtree(both)
    both.mkdir()
    (both / "notes.txt").write_text("moved")
    found = recheck(tmp_path / "td")
    assert (found.source, found.hashed, found.problems) == (None, True, [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value.update(tensors=5), "its tensors aren't each described by"),
        (lambda value: value.update(architecture=None), "its architecture is no object"),
        (lambda value: value.update(source=5), "its source is no text"),
        (lambda value: value.update(companions={"../../key": "0"}), r"it names \.\./\.\./key, which is no part of it"),
    ],
)
def test_a_manifest_that_is_none(both, tmp_path, change, said):
    manifest_of(tmp_path / "td", change)
    with pytest.raises(UserError, match=said):
        recheck(tmp_path / "td", both)


def test_a_conversion_without_hashes_is_compared_with_its_source(make_hf, tmp_path):
    source = make_hf()
    for origin, target in ((source, "td"), (tmp_path / "td", "back")):
        done = CliRunner().invoke(app, ["convert-ckpt", str(origin), str(tmp_path / target), "--no-verify"])
        assert done.exit_code == 0, done.stderr
        assert "not verified" in done.stdout
        assert not recheck(tmp_path / target).problems
    shutil.rmtree(source)
    with pytest.raises(UserError, match="nothing to be compared with"):
        recheck(tmp_path / "td")


@pytest.fixture
def run(make_hf, tmp_path):
    """A run with steps 10 and 20, of which out was made from the first."""
    for step in (10, 20):
        source = make_hf(str(step), change=lambda tensors, step=step: tensors["model.norm.weight"].add_(step))
        convert(plan_conversion(source, tmp_path / "td"))
        folder = tmp_path / "run" / "checkpoints" / f"step-{step:06d}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(tmp_path / "td" / "release", folder)
        carry(tmp_path / "td", folder)
        shutil.rmtree(tmp_path / "td")
    (tmp_path / "run" / "run.json").write_text("{}")
    convert(plan_conversion(tmp_path / "run", tmp_path / "out", step=10))
    return tmp_path / "run"


def verified(*arguments):
    """Exit code, and all that is said on one line."""
    done = CliRunner().invoke(app, ["convert-ckpt", *map(str, arguments), "--verify-only"])
    return done.exit_code, f"{done.stdout}{done.stderr}".replace("\n", " ")


def test_a_step_of_a_run_is_compared_with_what_was_made_of_it(run, tmp_path):
    assert verified(run, tmp_path / "out", "--step", 10)[0] == 0
    code, said = verified(run, tmp_path / "out", "--step", 20)
    assert (code, "differs from the source, but has its hash" in said) == (1, True)
    code, said = verified(tmp_path / "out", "--step", 10)
    assert (code, "no run is named" in said) == (2, True)


def test_a_runs_step_is_the_manifests_where_none_is_named(run, tmp_path):
    code, said = verified(run, tmp_path / "out")
    assert code == 0, said
    assert "step-000010 (step 10, as its manifest says) and the hashes in its manifest" in said
    run = run.rename(tmp_path / "moved")
    assert verified(run, tmp_path / "out")[0] == 0
    shutil.rmtree(run / "checkpoints" / "step-000010")
    code, said = verified(run, tmp_path / "out")
    assert code == 1
    assert f"The conversion was made from step 10, which the run {run} has no more. Leave the run out" in said
    assert "one of its steps: 20." in said
    assert verified(tmp_path / "out")[0] == 0


def test_what_was_left_out_by_permission_needs_none_later(make_hf, tmp_path):
    source = make_hf(change=lambda tensors: tensors.update({"mtp.x": torch.ones(3)}))
    convert(plan_conversion(source, tmp_path / "td", allow=("mtp.*",)))
    for origin in (source, None):
        found = recheck(tmp_path / "td", origin)
        assert (found.source is not None, found.problems) == (True, [])
    tensors = load_file(source / "model.safetensors")
    save_file({**tensors, "mtp.y": torch.ones(3)}, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(Findings, match=r"unknown: mtp\.y"):
        recheck(tmp_path / "td", source)


def test_a_changed_template_is_named(both, tmp_path):
    (tmp_path / "td" / "hf" / "tokenizer_config.json").write_text("{}")
    assert [what for what, _ in recheck(tmp_path / "td").problems] == [
        "tokenizer_config.json changed since the conversion, or is gone."
    ]


@pytest.mark.parametrize("name", [".metadata", "common.pt", "metadata.json", "__0_1.distcp"])
@pytest.mark.parametrize("alone", [True, False])
def test_what_megatron_reads_beside_the_tensors_is_hashed_too(both, tmp_path, name, alone):
    path = tmp_path / "td" / "release" / name
    with path.open("ab") as file:
        file.write(b" ")
    if alone:
        shutil.rmtree(both)
    assert [what for what, _ in recheck(tmp_path / "td").problems] == [f"{name} changed since the conversion, or is gone."]
    if name in ("common.pt", "metadata.json"):
        path.unlink()
        assert [what for what, _ in recheck(tmp_path / "td").problems] == [f"{name} changed since the conversion, or is gone."]


def test_nothing_to_compare_with(both, tmp_path):
    (tmp_path / "td" / "openclaw.json").unlink()
    with pytest.raises(UserError, match="nothing to be compared with"):
        recheck(tmp_path / "td")
    assert not recheck(tmp_path / "td", both).problems
    with pytest.raises(UsageError, match="are both hf"):
        recheck(tmp_path / "back", both)


def test_the_wrong_source_is_named_as_such(make_hf, tmp_path):
    """Not as a list of its tensors, with the advice to leave them out."""
    wrong, there = make_hf("q2", "qwen2"), make_hf("q3")
    for source, target in ((wrong, "td2"), (there, "td3"), (tmp_path / "td3", "back3")):
        convert(plan_conversion(source, tmp_path / target))
    for source, target, made in ((wrong, "td3", there), (tmp_path / "td2", "back3", tmp_path / "td3" / "release")):
        done = CliRunner().invoke(app, ["convert-ckpt", str(source), str(tmp_path / target), "--verify-only"])
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == (
            f"error: {tmp_path / target} was made from {made} (qwen3), another model than {source} (qwen2): head_dim 16, not 8. "
            "Name what it was made from, or leave SRC out to compare with the hashes in its manifest.\n"
        )


def test_every_finding_has_a_whole_remedy(make_hf, tmp_path):
    def change(tensors):
        tensors["mtp.x"] = tensors.pop("model.layers.1.mlp.up_proj.weight")
        tensors["model.norm.weight"] = torch.ones(5)

    said = json.loads(
        CliRunner().invoke(app, ["--json", "convert-ckpt", str(make_hf(change=change)), str(tmp_path / "td")]).stdout
    )
    kinds = {item["what"].split()[0]: item["remedy"] for item in said["findings"]}
    assert kinds == {
        "missing:": "Take weights and config from one release.",
        "unknown:": "No rule maps it; --allow GLOB leaves it out.",
        "model.norm.weight": "Take weights and config from one release.",
    }
