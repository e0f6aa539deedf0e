"""Folders of safetensors: incomplete, doubled or damaged ones are refused; slices are exact; nothing is written back."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_core.checkpoint.hf import HfReader, HfWriter
from openclaw_core.errors import Findings, UserError


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_are_exact_and_private(make_hf, read_hf, shards):
    folder = make_hf(shards=shards)
    reader = HfReader(folder)
    for name, tensor in read_hf(folder).items():
        assert torch.equal(reader.read(name), tensor)
        assert torch.equal(reader.read(name, (3, 11)), tensor[3:11])
        reader.read(name).zero_()
        assert torch.equal(reader.read(name), tensor)


def test_only_pickles(make_hf):
    folder = make_hf()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="can run code"):
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


@pytest.mark.parametrize("index", ['{"weight_map": {"a": "../x.safetensors"}}', "[]", "{", '{"weight_map": 3}'])
def test_a_broken_index(make_hf, index):
    folder = make_hf(shards=2)
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match="can't be read"):
        HfReader(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file(make_hf, keep):
    folder = make_hf()
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:keep])
    with pytest.raises(UserError, match="isn't a complete safetensors file"):
        HfReader(folder)


def test_written_folders_read_elsewhere(tmp_path):
    tensors = {f"t{i}": torch.randn(7, i + 1).to(torch.bfloat16) for i in range(6)}
    writer = HfWriter(tmp_path, {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}, max_file_bytes=150)
    for name in reversed(tensors):
        writer.write(name, tensors[name][5:], 5)
        writer.write(name, tensors[name][:5])
    writer.close()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    for name, tensor in tensors.items():
        assert torch.equal(load_file(tmp_path / index["weight_map"][name])[name], tensor)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    assert torch.equal(HfReader(tmp_path).read("t3"), tensors["t3"])


def test_mixed_dtypes_leave_a_tensor_unaligned(tmp_path):
    save_file({"a": torch.ones(3, dtype=torch.uint8), "b": torch.arange(5.0)}, tmp_path / "model.safetensors")
    assert torch.equal(HfReader(tmp_path).read("b"), torch.arange(5.0))
