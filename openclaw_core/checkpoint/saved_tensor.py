"""Maps a tensor that torch.save wrote into the middle of a file: no copy, and no code run from its pickle."""

from __future__ import annotations

import io
import math
import mmap
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from openclaw_core.checkpoint.hf import map_tensor

_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class _Description(pickle.Unpickler):
    """Reads what torch.save says of one tensor: (dtype, storage key, offset, shape, strides)."""

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key, _, _ = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"{kind} instead of a storage")
        return dtype, key

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, strides, *_: (*storage, offset, tuple(shape), tuple(strides))
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a stored tensor")


class _View(io.RawIOBase):
    """A part of a mapped file as a file of its own."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, len(self._data))[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def map_saved_tensor(path: Path, start: int, length: int) -> torch.Tensor:
    """The tensor that bytes [start, start + length) of a file hold in torch.save's format, mapped from the file.

    Raises ValueError when they don't hold one tensor in the plain, uncompressed form.
    """
    page = start - start % mmap.ALLOCATIONGRANULARITY
    try:
        with path.open("rb") as file:
            region = mmap.mmap(file.fileno(), start + length - page, access=mmap.ACCESS_READ, offset=page)
        dtype, at, shape, strides = _locate(memoryview(region)[start - page :])
    except (zipfile.BadZipFile, pickle.UnpicklingError, KeyError, TypeError, EOFError, IndexError, struct.error) as error:
        raise ValueError(f"not a saved tensor: {error}") from None
    if strides != _contiguous(shape):
        raise ValueError(f"strides {strides} of shape {shape}")
    nbytes = math.prod(shape) * dtype.itemsize
    if at + nbytes > length:
        raise ValueError(f"{length} bytes for a tensor of {nbytes}")
    return map_tensor(path, start + at, start + at + nbytes, dtype, shape)


def _locate(data: memoryview) -> tuple[torch.dtype, int, tuple[int, ...], tuple[int, ...]]:
    """Dtype, first byte, shape and strides of the tensor in a torch.save archive."""
    archive = zipfile.ZipFile(_View(data))
    entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
    if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
        raise ValueError("big-endian bytes")
    dtype, key, offset, shape, strides = _Description(io.BytesIO(archive.read(entries["data.pkl"]))).load()
    entry = entries[f"data/{key}"]
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError("compressed bytes")
    name_length, extra_length = struct.unpack("<HH", data[entry.header_offset + 26 : entry.header_offset + 30])
    return dtype, entry.header_offset + 30 + name_length + extra_length + offset * dtype.itemsize, shape, strides


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
