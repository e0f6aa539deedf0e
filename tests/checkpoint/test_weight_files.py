"""Folders whose weights are missing, doubled, pickled or half there: each refused with the way out."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint.hf import HfReader
from openclaw_core.errors import Findings, UserError


def test_only_pickles(make_hf):
    folder = make_hf()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="can run code"):
        HfReader(folder)


@pytest.mark.parametrize("name", ["weights.pt", "mine.bin", "last.ckpt", "model.pth"])
def test_only_pickles_of_any_name(make_hf, tmp_path, name):
    folder = make_hf()
    (folder / "model.safetensors").rename(folder / name)
    done = CliRunner().invoke(app, ["convert-ckpt", str(folder), str(tmp_path / "td")])
    assert done.exit_code == 1
    assert f"{folder} holds its weights as pickle ({name}), which can run code when read. Take the release's" in done.stderr


@pytest.mark.parametrize(
    ("beside", "shards", "said"),
    [
        ("consolidated.safetensors", 1, "two sets of weights: model.safetensors and consolidated.safetensors. Move consoli"),
        ("adapter_model.safetensors", 1, "and adapter_model.safetensors. Merge the adapter into the model, or move it away."),
        ("adapter_model.safetensors", 2, "doesn't name adapter_model.safetensors. Merge the adapter into the model, or move"),
        ("consolidated.safetensors", 2, "json doesn't name consolidated.safetensors. Move consolidated.safetensors away if"),
    ],
)
def test_another_set_beside_the_models(make_hf, beside, shards, said):
    folder = make_hf(shards=shards)
    shutil.copy(next(folder.glob("*.safetensors")), folder / beside)
    with pytest.raises(UserError) as caught:
        HfReader(folder)
    assert said in str(caught.value)


def test_an_adapter_alone(make_hf):
    folder = make_hf()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"a LoRA adapter alone .* Merge it into its base model first\."):
        HfReader(folder)


def test_two_sources(make_hf):
    folder = make_hf()
    (folder / "pytorch_model-00001-of-00002.bin").write_bytes(b"")
    with pytest.raises(UserError, match="two sets of weights"):
        HfReader(folder)


def test_a_leftover_beside_shards(make_hf, tmp_path):
    folder = make_hf(shards=2)
    shutil.copy(make_hf("other") / "model.safetensors", folder)
    with pytest.raises(UserError, match=r"doesn't name model\.safetensors"):
        HfReader(folder)


def test_a_missing_shard(make_hf):
    folder = make_hf(shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match="names model-00002-of-00003"):
        HfReader(folder)


def test_shards_without_their_index(make_hf):
    folder = make_hf(shards=3)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(UserError, match=r"no model\.safetensors\.index\.json"):
        HfReader(folder)


def test_an_index_that_disagrees(make_hf):
    folder = make_hf(shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    with pytest.raises(Findings, match="but not listed"):
        HfReader(folder)


@pytest.mark.parametrize(
    "index", ['{"weight_map": {"a": "../x.safetensors"}}', "[]", "{", '{"weight_map": 3}', '{"weight_map": {}}']
)
def test_a_broken_index(make_hf, index):
    folder = make_hf(shards=2)
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match="can't be read"):
        HfReader(folder)
