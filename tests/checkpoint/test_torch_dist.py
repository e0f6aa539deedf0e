"""torch_dist folders that can't be trusted or aren't whole; boxes across chunks; megatron's common state."""

from __future__ import annotations

import os
import pickle
import sys
from argparse import Namespace
from enum import Enum
from types import ModuleType

import pytest
import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.dist_writer import Part
from openclaw_core.checkpoint.torch_dist import TorchDistReader, resolve
from openclaw_core.errors import UserError


@pytest.fixture
def converted(make_hf, tmp_path):
    convert(plan_conversion(make_hf(), tmp_path / "td"))
    return resolve(tmp_path / "td")


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_the_index_is_torchs_own(converted):
    """torch's own classes unpickle it, field by field as torch writes them itself."""
    from torch.distributed.checkpoint import FileSystemReader, metadata
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    found = FileSystemReader(converted).read_metadata()
    assert type(found) is metadata.Metadata
    entry = found.state_dict_metadata["decoder.layers.mlp.linear_fc2.weight"]
    assert type(entry) is metadata.TensorStorageMetadata
    assert entry.properties == metadata.TensorProperties(dtype=torch.bfloat16)
    assert entry.size == torch.Size([3, 32, 48])
    assert entry.chunks[1] == metadata.ChunkStorageMetadata(torch.Size([1, 0, 0]), torch.Size([1, 32, 48]))
    place = found.storage_data[metadata.MetadataIndex("decoder.layers.mlp.linear_fc2.weight", torch.Size([1, 0, 0]))]
    assert type(place) is _StorageInfo
    assert vars(place).keys() <= vars(_StorageInfo("x", 0, 1)).keys()
    fields = metadata.Metadata({}, None, {}, metadata.StorageMeta())
    assert vars(found).keys() == vars(fields).keys()
    assert vars(found.storage_meta).keys() == vars(fields.storage_meta).keys()
    assert found.version == fields.version or found.version == "1.0.0"


def test_a_checkpoint_of_torchs_own_writer(tmp_path):
    from torch.distributed.checkpoint import save

    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    save(dict(tensors), checkpoint_id=tmp_path / "td", no_dist=True)
    reader = TorchDistReader(tmp_path / "td")
    assert all(torch.equal(reader.read(name, (0,) * t.dim(), tuple(t.shape)), t) for name, t in tensors.items())


def test_metadata_runs_no_code(converted, tmp_path):
    (converted / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(UserError, match=r"mkdir has no place in checkpoint metadata"):
        TorchDistReader(converted)
    assert not (tmp_path / "ran").exists()


def test_common_state_runs_no_code(converted, tmp_path):
    torch.save({"args": Evil(tmp_path / "ran")}, converted / "common.pt")
    with pytest.raises(UserError, match="can't be read safely"):
        TorchDistReader(converted).common()
    assert not (tmp_path / "ran").exists()


def test_a_stored_tensor_runs_no_code(converted, tmp_path):
    reader = TorchDistReader(converted)
    chunk = reader.contents.tensors["decoder.final_layernorm.weight"].chunks[0]
    data = bytearray((converted / chunk.file).read_bytes())
    evil = tmp_path / "evil.pt"
    torch.save(Evil(tmp_path / "ran"), evil)
    data[chunk.start : chunk.start + evil.stat().st_size] = evil.read_bytes()
    (converted / chunk.file).write_bytes(data)
    with pytest.raises(UserError, match="can't be read"):
        reader.read("decoder.final_layernorm.weight", (0,), (32,))
    assert not (tmp_path / "ran").exists()


def test_metadata_must_stay_in_its_folder(converted):
    data = (converted / ".metadata").read_bytes()
    (converted / ".metadata").write_bytes(data.replace(b"__0_0.distcp", b"/0_0.distcp/"))
    with pytest.raises(UserError, match="points outside"):
        TorchDistReader(converted)


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_half_written(converted, damage):
    path = next(converted.glob("*.distcp"))
    if damage == "truncate":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()
    with pytest.raises(UserError, match="half-written"):
        TorchDistReader(converted)


BROKEN = {
    "empty": b"",
    "a number": b"\x80\x04K\x01.",
    "no pickle": b"garbage",
    "a newer pickle": b"\x80\x09N.",
    "text that isn't UTF-8": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
    "longer than any file": b"\x80\x04\x8e" + (1 << 63).to_bytes(8, "little") + b".",
    "longer than any memory": b"\x80\x04\x8e" + (1 << 62).to_bytes(8, "little") + b".",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_broken_metadata(converted, data):
    (converted / ".metadata").write_bytes(data)
    with pytest.raises(UserError, match=r"\.metadata can't be read: .+\. The checkpoint is damaged .* convert or save it again"):
        TorchDistReader(converted)


def test_boxes_cross_chunks_and_holes_are_seen(tmp_path, write_dist):
    whole = torch.arange(60.0).reshape(6, 10)
    boxes = [((0, 0), (2, 10)), ((2, 0), (4, 5)), ((2, 5), (4, 5))]
    parts = [Part("t", o, s, lambda o=o, s=s: whole[o[0] : o[0] + s[0], o[1] : o[1] + s[1]].clone()) for o, s in boxes]
    write_dist(tmp_path / "a", {"t": ((6, 10), torch.float32)}, parts, {}, {"iteration": 5})
    reader = TorchDistReader(tmp_path / "a")
    assert torch.equal(reader.read("t", (1, 3), (4, 6)), whole[1:5, 3:9])
    assert torch.equal(reader.read("t", (3, 6), (2, 2)), whole[3:5, 6:8])
    assert reader.common() == {"iteration": 5}
    write_dist(tmp_path / "b", {"t": ((6, 10), torch.float32)}, parts[:2], {}, {})
    with pytest.raises(UserError, match="isn't stored completely"):
        TorchDistReader(tmp_path / "b").read("t", (0, 0), (6, 10))


def test_common_state_of_both_generations(tmp_path, write_dist):
    """megatron-core 0.16 writes common.pt, 0.19 an entry with a list of one."""
    import io

    buffer = io.BytesIO()
    torch.save([{"args": Namespace(num_layers=3), "iteration": 9}], buffer)
    one = Part("t", (0,), (2,), lambda: torch.zeros(2))
    write_dist(tmp_path / "a", {"t": ((2,), torch.float32)}, [one], {"common_state/shard_0_1": buffer.getvalue()}, {})
    (tmp_path / "a" / "common.pt").unlink()
    assert TorchDistReader(tmp_path / "a").common() == {"args": Namespace(num_layers=3), "iteration": 9}
    torch.save({"args": Namespace(num_layers=4)}, tmp_path / "a" / "common.pt")
    assert TorchDistReader(tmp_path / "a").common()["args"].num_layers == 4


def test_common_state_with_megatrons_own_classes(tmp_path, monkeypatch, write_dist):
    """What megatron's trainer saves holds an enum among the arguments; it is read without building or importing it."""
    kind = Enum("ModelType", {"decoder": 1})
    kind.__module__, kind.__qualname__ = "megatron.made_up.enums", "ModelType"
    module = ModuleType(kind.__module__)
    module.ModelType = kind
    with monkeypatch.context() as patch:
        for name in ("megatron.made_up", kind.__module__):
            patch.setitem(sys.modules, name, module)
        write_dist(tmp_path / "a", {}, [], {}, {"args": Namespace(num_layers=3, model_type=kind.decoder)})
    arguments = TorchDistReader(tmp_path / "a").common()["args"]
    assert arguments.num_layers == 3
    assert not isinstance(arguments.model_type, Enum)
