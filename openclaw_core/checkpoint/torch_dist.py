"""torch_dist folders: boxes of stored tensors read one at a time, and folders written box by box. No process group."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, save
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from openclaw_core.checkpoint.metadata import Chunk, Contents, Opaque, read_contents
from openclaw_core.checkpoint.saved_tensor import map_saved_tensor
from openclaw_core.checkpoint.sniff import resolve
from openclaw_core.errors import UserError

COMMON_OBJECT = "common_state/shard_0_1"


class TorchDistReader:
    """Reads boxes of the tensors of one torch_dist folder (the one with .metadata), mapped from its files.

    contents lists everything stored; optimizer state is in it under its own names and is read only when asked for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contents: Contents = read_contents(folder)

    def read(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        """The box [offsets, offsets + sizes) of a stored tensor; raises UserError when a part of it isn't stored."""
        stored = self.contents.tensors[name]
        out: torch.Tensor | None = None
        covered = 0
        for chunk in stored.chunks:
            low = tuple(max(a, b) for a, b in zip(offsets, chunk.offsets, strict=True))
            high = tuple(min(a + n, b + m) for a, n, b, m in zip(offsets, sizes, chunk.offsets, chunk.sizes, strict=True))
            if any(h <= lo for lo, h in zip(low, high, strict=True)):
                continue
            piece = self._load(name, chunk)
            for axis, (lo, h, start) in enumerate(zip(low, high, chunk.offsets, strict=True)):
                piece = piece.narrow(axis, lo - start, h - lo)
            covered += piece.numel()
            if piece.numel() == math.prod(sizes):
                return piece
            out = torch.empty(sizes, dtype=stored.dtype) if out is None else out
            target = out
            for axis, (lo, h, start) in enumerate(zip(low, high, offsets, strict=True)):
                target = target.narrow(axis, lo - start, h - lo)
            target.copy_(piece)
        if out is None or covered != math.prod(sizes):
            raise UserError(f"{self.folder}: {name} at {list(offsets)} isn't stored completely.", "Convert or save it again.")
        return out

    def common(self) -> dict[str, Any]:
        """Unsharded state: common.pt (megatron-core 0.16), or the entry that holds it (0.19). Loaded weights-only."""
        path = self.folder / "common.pt"
        if path.is_file():
            return _load_common(path, str(path))
        place = self.contents.objects.get(COMMON_OBJECT)
        if place is None:
            return {}
        with (self.folder / place[0]).open("rb") as file:
            file.seek(place[1])
            return _load_common(io.BytesIO(file.read(place[2])), f"{self.folder}: {COMMON_OBJECT}")

    def _load(self, name: str, chunk: Chunk) -> torch.Tensor:
        path = self.folder / chunk.file
        try:
            tensor = map_saved_tensor(path, chunk.start, chunk.length)
        except ValueError as error:
            raise UserError(
                f"{path}: {name} can't be read: {error}.", "The checkpoint is damaged; convert or save it again."
            ) from None
        if tuple(tensor.shape) != chunk.sizes:
            raise UserError(
                f"{self.folder}: {name} holds {list(tensor.shape)} where its index says {list(chunk.sizes)}.",
                "Convert or save it again.",
            )
        return tensor


def _load_common(source: Path | io.BytesIO, where: str) -> dict[str, Any]:
    """Megatron's own classes are stood in for: only plain values, tensors and namespaces are of use here."""
    from argparse import Namespace
    from types import SimpleNamespace

    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(source)
        stand_ins: list[Any] = [(Opaque, name) for name in names if name.startswith("megatron.")]
        if isinstance(source, io.BytesIO):
            source.seek(0)
        with torch.serialization.safe_globals([Namespace, SimpleNamespace, *stand_ins]):
            value = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds for damaged or unsafe bytes
        reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), str(error).partition("\n")[0])
        raise UserError(f"{where} can't be read safely: {reason}", "Save it again with megatron-core 0.16 or newer.") from None
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Part:
    """One box to be written: where it lies, and the function that produces it when its turn comes."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    produce: Callable[[], torch.Tensor]


def write_folder(
    folder: Path,
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]],
    parts: Iterable[Part],
    objects: dict[str, bytes],
    common: dict[str, Any],
) -> None:
    """Writes the tensors of shapes, box by box, and everything else that megatron-core expects beside them.

    parts must tile every tensor of shapes; each is produced only when it is written. Files are synced to disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = FileSystemWriter(folder, sync_files=True, thread_count=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save({}, storage_writer=writer, planner=_LazyPlanner(shapes, list(parts), objects), no_dist=True)
    torch.save(common, folder / "common.pt")
    metadata = {
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
        "common_backend": "torch",
        "common_backend_version": 1,
    }
    (folder / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")


class _LazyPlanner(DefaultSavePlanner):
    """Announces every box with its place in the whole tensor, and makes its data when the writer comes to it."""

    def __init__(
        self, shapes: dict[str, tuple[tuple[int, ...], torch.dtype]], parts: list[Part], objects: dict[str, bytes]
    ) -> None:
        super().__init__(flatten_state_dict=False)
        self._shapes = shapes
        self._parts = {(part.name, part.offsets): part for part in parts}
        self._objects = objects

    def create_local_plan(self) -> SavePlan:
        items = [WriteItem(index=MetadataIndex(name), type=WriteItemType.BYTE_IO) for name in self._objects]
        for part in self._parts.values():
            shape, dtype = self._shapes[part.name]
            box = ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes))
            data = TensorWriteData(box, TensorProperties(dtype=dtype), torch.Size(shape))
            items.append(WriteItem(index=MetadataIndex(part.name, box.offsets), type=WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        name = write_item.index.fqn
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(self._objects[name])
        part = self._parts[name, tuple(write_item.index.offset or ())]
        tensor = part.produce()
        if tuple(tensor.shape) != part.sizes or tensor.dtype != self._shapes[name][1]:
            raise AssertionError(f"{name} at {part.offsets}: {tuple(tensor.shape)} {tensor.dtype}, announced {part.sizes}")
        return tensor


def empty_extra_state() -> bytes:
    """What megatron stores as a layer's extra state when there is none: a list with one None."""
    buffer = io.BytesIO()
    torch.save([None], buffer)
    return buffer.getvalue()


__all__ = ["Part", "TorchDistReader", "empty_extra_state", "resolve", "write_folder"]
