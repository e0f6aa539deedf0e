"""Reads a torch_dist folder's .metadata without trusting it: an unpickler that knows the format's classes only."""

from __future__ import annotations

import importlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from openclaw_core.checkpoint.torch_classes import CHECKPOINT, STAND_INS
from openclaw_core.errors import UserError

_SKIPPED = {"SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData"}
_CLASSES = {
    "collections": {"OrderedDict", "defaultdict"},
    "builtins": {"set", "frozenset", "dict", "list", "tuple"},
    "torch": {"Size", *(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype | torch.layout))},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
}
# What damaged bytes make an unpickler raise: ValueError for text that isn't UTF-8, the last two for lengths beyond any memory.
_DAMAGE = (
    pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError,
    OverflowError, MemoryError,
)  # fmt: skip


class Opaque:
    """Stands in for megatron's own bookkeeping classes, whose content isn't needed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Takes what the class it stands in for would take."""

    def __setstate__(self, state: Any) -> None:
        """Forgets it."""


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("megatron.core.dist_checkpointing.") or (module == CHECKPOINT + "planner" and name in _SKIPPED):
            return Opaque
        if (module, name) in STAND_INS:
            return STAND_INS[module, name]
        if name in _CLASSES.get(module, ()):
            return getattr(importlib.import_module("pathlib" if module == "pathlib._local" else module), name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in checkpoint metadata")


@dataclass(frozen=True)
class Chunk:
    """A stored box of a tensor and the bytes that hold it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class Stored:
    """A tensor of a torch_dist checkpoint: its whole shape and the chunks that make it up."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Contents:
    """Everything a torch_dist folder holds, by name; objects are (file, start, length)."""

    tensors: dict[str, Stored]
    objects: dict[str, tuple[str, int, int]]


def read_contents(folder: Path) -> Contents:
    """Tensors and objects of a torch_dist folder, without touching weights.

    Raises UserError when .metadata is missing, unreadable, names a file that is missing or too short (a half-written
    checkpoint), or leaves a part of a tensor unstored.
    """
    path = folder / ".metadata"
    try:
        with path.open("rb") as file:
            metadata = _load(file)
        return _contents(folder, metadata)
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no .metadata: it isn't a complete torch_dist checkpoint.", "Convert or save it again."
        ) from None
    except _DAMAGE as error:
        why = str(error) or type(error).__name__
        raise UserError(
            f"{path} can't be read: {why}.", "The checkpoint is damaged or not a torch_dist one; convert or save it again."
        ) from None


def _load(file: IO[bytes]) -> Any:
    return _MetadataUnpickler(file).load()


def _contents(folder: Path, metadata: Any) -> Contents:
    places = {
        (index.fqn, tuple(index.offset) if index.offset is not None else None): info
        for index, info in metadata.storage_data.items()
    }
    _check_files(folder, list(places.values()))
    tensors: dict[str, Stored] = {}
    objects: dict[str, tuple[str, int, int]] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not hasattr(entry, "chunks"):
            info = places[name, None]
            objects[name] = (info.relative_path, info.offset, info.length)
            continue
        chunks = []
        for chunk in entry.chunks:
            offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
            info = places.get((name, offsets)) or places[name, None]
            chunks.append(Chunk(offsets, sizes, info.relative_path, info.offset, info.length))
        tensors[name] = Stored(tuple(entry.size), entry.properties.dtype, tuple(chunks))
    return Contents(tensors, objects)


def _check_files(folder: Path, places: list[Any]) -> None:
    ends: dict[str, int] = {}
    for info in places:
        if getattr(info, "transform_descriptors", None):
            raise UserError(f"{folder} stores transformed (compressed) tensors.", "Save it without storage extensions.")
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    for name, end in sorted(ends.items()):
        if "/" in name or name.startswith(".."):
            raise UserError(f"{folder}/.metadata points outside its folder: {name!r}.", "Don't use this checkpoint.")
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size is None or size < end:
            state = "is missing" if size is None else f"has {size:,} of {end:,} bytes"
            raise UserError(f"{folder} is half-written: {name} {state}.", "Convert or save it again.")
