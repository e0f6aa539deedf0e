"""Folders of safetensors: incomplete, doubled or damaged ones are refused; slices are exact; nothing is written back."""

from __future__ import annotations

import json
import os
import struct

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


NORM, OTHER = "model.norm.weight", "model.layers.0.input_layernorm.weight"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("data_offsets", [10**9, 10**9 + 64], "begins at byte 1,000,0"),
        ("data_offsets", [0.0, 64.0], r"has shape \[32\] at \[0\.0, 64\.0\]"),
        ("data_offsets", [-64, 0], r"at \[-64, 0\]"),
        ("data_offsets", 5, "isn't described by"),
        ("shape", [32.0], r"has shape \[32\.0\]"),
        ("shape", [-32, -1], r"has shape \[-32, -1\]"),
        ("shape", [True, 32], "has shape"),
        ("shape", [31], "has 64 bytes for shape"),
        ("dtype", "F4", "unknown dtype F4"),
        ("dtype", ["BF16"], "isn't described by"),
    ],
)
def test_a_header_that_lies(make_hf, key, value, said):
    folder = make_hf()
    rewrite(folder / "model.safetensors", lambda header: header[NORM].update({key: value}))
    with pytest.raises(UserError, match=said):
        HfReader(folder)


def test_two_tensors_in_one_place(make_hf):
    folder = make_hf()
    rewrite(folder / "model.safetensors", lambda header: header[NORM].update(data_offsets=header[OTHER]["data_offsets"]))
    with pytest.raises(UserError, match=r"begins at byte .*, where .* was due"):
        HfReader(folder)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda header: json.dumps(header)[:-1] + f', "{NORM}": {{}}}}', f"'{NORM}' is named twice"),
        (lambda header: json.dumps(header).replace(NORM, "a\\nb"), r"names a tensor 'a\\nb'"),
        (lambda header: "[" * 100_000, "recursion"),
        (lambda header: "[]", "no object"),
    ],
)
def test_a_header_that_is_none(make_hf, make, said):
    folder = make_hf()
    rewrite(folder / "model.safetensors", make)
    with pytest.raises(UserError, match=said):
        HfReader(folder)


@pytest.mark.parametrize("what", ["folder", "link", "pipe"])
def test_weights_that_are_no_file(make_hf, what):
    path = make_hf() / "model.safetensors"
    path.unlink()
    {"folder": path.mkdir, "link": lambda: path.symlink_to("gone"), "pipe": lambda: os.mkfifo(path)}[what]()
    with pytest.raises(UserError, match=r"model\.safetensors: not a file, or a link to one that is gone"):
        HfReader(path.parent)


def test_a_pointer_instead_of_the_file(make_hf):
    folder = make_hf()
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(UserError, match=r"pointer of Git LFS, not the file itself\. Fetch it with `git lfs pull`"):
        HfReader(folder)


def rewrite(path, change):
    """Changes a file's header in place, or puts the text that change returns for it."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    made = change(header)
    text = (made if isinstance(made, str) else json.dumps(header)).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


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
