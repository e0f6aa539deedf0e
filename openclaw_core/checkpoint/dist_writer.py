"""Writes torch_dist folders: files of boxes, each produced when its turn comes, then the index that ties them together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from openclaw_core.checkpoint.hf import allocate
from openclaw_core.checkpoint.metadata import Chunk, Contents, Stored
from openclaw_core.checkpoint.torch_classes import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageInfo,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
    dump,
)

VERSION = "1.0.0"  # of torch's format
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class Part:
    """One box to be written: where it lies, and the function that produces it when its turn comes."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    produce: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Place:
    """A box that was written, and the bytes of its file that hold it."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int
    length: int


def file_name(number: int) -> str:
    """torch's name for a data file of rank 0."""
    return f"__0_{number}.distcp"


def write_file(path: Path, shapes: Shapes, parts: Iterable[Part], nbytes: int = 0) -> list[Place]:
    """Writes boxes one after the other, holding one at a time. Not synced: a caller that needs that syncs the file.

    nbytes, the size of all boxes together, lets the room be allocated at once: cheaper, and a full disk is seen early.
    """
    places = []
    with path.open("wb") as file:
        allocate(file.fileno(), nbytes)
        for part in parts:
            start = file.tell()
            tensor = part.produce()
            if tuple(tensor.shape) != part.sizes or tensor.dtype != shapes[part.name][1]:
                raise AssertionError(f"{part.name} at {part.offsets}: {tuple(tensor.shape)} {tensor.dtype}, not {part.sizes}")
            torch.save(tensor, file)
            places.append(Place(part.name, part.offsets, part.sizes, start, file.tell() - start))
        file.truncate()
    return places


def contents_of(shapes: Shapes, files: dict[str, list[Place]]) -> Contents:
    """What the boxes of these files make up, as a reader needs it before there is an index."""
    chunks: dict[str, list[Chunk]] = {}
    for name, places in files.items():
        for place in places:
            chunks.setdefault(place.name, []).append(Chunk(place.offsets, place.sizes, name, place.start, place.length))
    return Contents({name: Stored(*shapes[name], tuple(found)) for name, found in chunks.items()}, {})


def write_index(
    folder: Path, shapes: Shapes, files: dict[str, list[Place]], objects: dict[str, bytes], common: dict[str, Any]
) -> list[str]:
    """Objects, common state and, last, .metadata: everything that megatron-core expects beside the files of boxes.

    Returns the names of the files that it wrote.
    """
    name = file_name(len(files))
    entries: dict[str, Any] = {}
    storage: dict[MetadataIndex, StorageInfo] = {}
    if objects:
        with (folder / name).open("wb") as file:
            for key, data in objects.items():
                entries[key] = BytesStorageMetadata()
                storage[_index(key)] = StorageInfo(relative_path=name, offset=file.tell(), length=len(data))
                file.write(data)
            _sync(file)
    for key, stored in contents_of(shapes, files).tensors.items():
        boxes = [
            ChunkStorageMetadata(offsets=torch.Size(chunk.offsets), sizes=torch.Size(chunk.sizes)) for chunk in stored.chunks
        ]
        entries[key] = TensorStorageMetadata(
            properties=TensorProperties(dtype=stored.dtype), size=torch.Size(stored.shape), chunks=boxes
        )
        for number, chunk in enumerate(stored.chunks):
            place = StorageInfo(relative_path=chunk.file, offset=chunk.start, length=chunk.length)
            storage[_index(key, torch.Size(chunk.offsets), number)] = place
    torch.save(common, folder / "common.pt")
    settings = {
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
        "common_backend": "torch",
        "common_backend_version": 1,
    }
    (folder / "metadata.json").write_text(json.dumps(settings), encoding="utf-8")
    meta = StorageMeta(checkpoint_id=None, save_id=None, load_id=None, modules=[])
    metadata = Metadata(state_dict_metadata=entries, planner_data=None, storage_data=storage, storage_meta=meta, version=VERSION)
    with (folder / ".metadata").open("wb") as file:
        dump(metadata, file)
        _sync(file)
    return [*([name] if objects else []), "common.pt", "metadata.json", ".metadata"]


def _index(name: str, offset: torch.Size | None = None, number: int | None = None) -> MetadataIndex:
    return MetadataIndex(fqn=name, offset=offset, index=number)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
