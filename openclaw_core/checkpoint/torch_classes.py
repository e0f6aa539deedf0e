"""Stand-ins for the classes in torch.distributed.checkpoint's .metadata, pickled and unpickled under torch's names.

The real ones cost a second of import time for a few fields; the file is the same.
"""

from __future__ import annotations

import pickle
from typing import IO, Any, ClassVar

import torch

CHECKPOINT = "torch.distributed.checkpoint."


class Record:
    """Fields by name, as a dataclass of torch's has them. place is torch's module and name."""

    place = ("", "")

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


class Metadata(Record):
    """state_dict_metadata by name, storage_data by index."""

    place = (CHECKPOINT + "metadata", "Metadata")


class MetadataIndex(Record):
    """A box of a tensor (fqn, offset), or an object (fqn)."""

    place = (CHECKPOINT + "metadata", "MetadataIndex")
    fqn: str
    offset: tuple[int, ...] | None = None  # torch leaves out what is None

    def __hash__(self) -> int:
        return hash((self.fqn, self.offset))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MetadataIndex) and (self.fqn, self.offset) == (other.fqn, other.offset)


class TensorStorageMetadata(Record):
    """properties, size and chunks of a tensor."""

    place = (CHECKPOINT + "metadata", "TensorStorageMetadata")


class BytesStorageMetadata(Record):
    """An object; it has no fields."""

    place = (CHECKPOINT + "metadata", "BytesStorageMetadata")


class ChunkStorageMetadata(Record):
    """offsets and sizes of a box."""

    place = (CHECKPOINT + "metadata", "ChunkStorageMetadata")


class TensorProperties(Record):
    """dtype; torch pickles it as (dtype, layout, requires_grad, memory format, pinned)."""

    place = (CHECKPOINT + "metadata", "TensorProperties")
    dtype: torch.dtype

    def __getstate__(self) -> tuple[Any, ...]:
        return self.dtype, torch.strided, False, MemoryFormat(0), False

    def __setstate__(self, state: Any) -> None:
        self.dtype = state[0]


class MemoryFormat(Record):
    """An enumeration of torch's; 0 is contiguous."""

    place = (CHECKPOINT + "metadata", "_MEM_FORMAT_ENCODING")

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.value,)


class StorageMeta(Record):
    """Where and as what it was saved."""

    place = (CHECKPOINT + "metadata", "StorageMeta")


class StorageInfo(Record):
    """relative_path, offset and length of stored bytes."""

    place = (CHECKPOINT + "filesystem", "_StorageInfo")


STAND_INS: dict[tuple[str, str], type[Record]] = {
    one.place: one
    for one in (
        Metadata,
        MetadataIndex,
        TensorStorageMetadata,
        BytesStorageMetadata,
        ChunkStorageMetadata,
        TensorProperties,
        MemoryFormat,
        StorageMeta,
        StorageInfo,
    )
}


_PurePython: Any = pickle._Pickler  # the one in C finds classes by importing them


class _Pickler(_PurePython):
    def save_global(self, obj: Any, name: str | None = None) -> None:
        if not (isinstance(obj, type) and issubclass(obj, Record)):
            super().save_global(obj, name)
            return
        for part in obj.place:
            self.save(part)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)

    def save_type(self, obj: Any) -> None:
        self.save_global(obj)

    dispatch: ClassVar[dict[type, Any]] = {**_PurePython.dispatch, type: save_type}


def dump(metadata: Metadata, file: IO[bytes]) -> None:
    """Pickles metadata so that torch finds its own classes in it."""
    _Pickler(file, protocol=4).dump(metadata)
