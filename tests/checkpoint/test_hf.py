"""Folders of safetensors: incomplete, doubled or damaged ones are refused; slices are exact; nothing is written back."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_core.checkpoint.hf import HfReader, HfWriter
from openclaw_core.errors import UserError


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_are_exact_and_private(make_hf, read_hf, shards):
    folder = make_hf(shards=shards)
    reader = HfReader(folder)
    for name, tensor in read_hf(folder).items():
        assert torch.equal(reader.read(name), tensor)
        assert torch.equal(reader.read(name, (3, 11)), tensor[3:11])
        reader.read(name).zero_()
        assert torch.equal(reader.read(name), tensor)


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
