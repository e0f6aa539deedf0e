"""Hugging Face folders: tensors mapped from safetensors one slice at a time, and written the same way."""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openclaw_core.checkpoint.weight_files import INDEX, SINGLE, read_index, weight_files
from openclaw_core.errors import Findings, UserError

MAX_FILE_BYTES = 5 * 10**9
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor of a safetensors file; start and stop are byte positions in the file."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class HfReader:
    """The tensors of one Hugging Face folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        for path in weight_files(folder):
            for name, entry in read_header(path).items():
                if name in self.entries:
                    raise UserError(
                        f"{folder}: {name} is in {self.entries[name].file.name} and in {path.name}.", "Keep one set of weights."
                    )
                self.entries[name] = entry
        _check_index(folder, self.entries)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> torch.Tensor:
        """A tensor, or its rows [start, stop), mapped from the file: freed with the tensor, no copy held."""
        return map_entry(self.entries[name], rows)


def map_entry(entry: Entry, rows: tuple[int, int] | None = None) -> torch.Tensor:
    """A tensor of a file, or its rows [start, stop), as HfReader.read has it."""
    shape, start, stop = entry.shape, entry.start, entry.stop
    if rows is not None:
        row_bytes = (entry.stop - entry.start) // entry.shape[0]
        start, stop = entry.start + rows[0] * row_bytes, entry.start + rows[1] * row_bytes
        shape = (rows[1] - rows[0], *entry.shape[1:])
    return map_tensor(entry.file, start, stop, entry.dtype, shape)


def map_tensor(path: Path, start: int, stop: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Bytes [start, stop) of a file as a tensor. Private copy-on-write pages: writing to it never reaches the file."""
    if start == stop:
        return torch.empty(shape, dtype=dtype)
    page = start - start % mmap.ALLOCATIONGRANULARITY
    with path.open("rb") as file:
        region = mmap.mmap(file.fileno(), stop - page, access=mmap.ACCESS_COPY, offset=page)
    if start % dtype.itemsize:  # only a file that mixes dtypes can leave a tensor unaligned
        return torch.frombuffer(bytearray(region[start - page :]), dtype=dtype).reshape(shape)
    return torch.frombuffer(region, dtype=dtype, offset=start - page).reshape(shape)


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a safetensors file. Raises UserError when its bytes don't add up (truncated, damaged, another file)."""
    if not path.is_file():
        raise UserError(f"{path}: not a file, or a link to one that is gone.", "Fetch the model again.")
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            head = file.read(8)
            if head == b"version ":
                raise UserError(f"{path} is a pointer of Git LFS, not the file itself.", "Fetch it with `git lfs pull`.")
            if len(head) < 8:
                raise ValueError("it is too short")
            (length,) = struct.unpack("<Q", head)
            if length > min(size - 8, 100 * 2**20):
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length), object_pairs_hook=_each_once)
        if not isinstance(header, dict):
            raise ValueError("its header is no object")
        header.pop("__metadata__", None)
        entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items()}
        _check_cover(entries, 8 + length, size)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} isn't a complete safetensors file: {error}.", "Fetch the model again.") from None
    return entries


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is named twice")
    return found


def _entry(path: Path, name: str, value: Any, base: int) -> Entry:
    """A header's entry, its offsets counted from base; ValueError where it can't be one."""
    if not name or not name.isprintable():
        raise ValueError(f"it names a tensor {name!r}")
    try:
        dtype, shape, (start, stop) = _DTYPES.get(value["dtype"]), tuple(value["shape"]), value["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{name} isn't described by dtype, shape and data_offsets") from None
    if dtype is None:
        raise ValueError(f"{name} has the unknown dtype {value['dtype']}")
    if any(type(number) is not int or number < 0 for number in (*shape, start, stop)):
        raise ValueError(f"{name} has shape {list(shape)} at {[start, stop]}")
    if stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} has {stop - start} bytes for shape {list(shape)}")
    return Entry(path, dtype, shape, base + start, base + stop)


def _check_cover(entries: dict[str, Entry], base: int, size: int) -> None:
    """Tensors lie one behind the other, from base to the end of the file; ValueError where they don't."""
    place = base
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != place:
            raise ValueError(f"{name} begins at byte {entry.start:,}, where {place:,} was due")
        place = entry.stop
    if place != size:
        raise ValueError(f"it has {size:,} bytes where {place:,} are announced")


def _check_index(folder: Path, entries: dict[str, Entry]) -> None:
    path = folder / INDEX
    if not path.is_file():
        return
    weights = read_index(path)
    problems = [
        (f"{name} is listed for {file} but isn't there.", "")
        for name, file in weights.items()
        if name not in entries or entries[name].file.name != file
    ]
    problems += [
        (f"{name} is in {entry.file.name} but not listed.", "") for name, entry in entries.items() if name not in weights
    ]
    if problems:
        raise Findings(f"{path} disagrees with the files beside it; fetch the model again.", problems)


class HfWriter:
    """Writes a folder's safetensors: all headers first, then any rows of any tensor in any order.

    shapes maps names to (shape, dtype); files hold at most max_file_bytes each, with an index when there are several.
    With resumed, files that an earlier writer of the same shapes left are gone on with. allocated reserves their room at
    once.
    """

    def __init__(
        self,
        folder: Path,
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]],
        max_file_bytes: int = MAX_FILE_BYTES,
        *,
        resumed: bool = False,
        allocated: bool = True,
    ) -> None:
        self._start(resumed, allocated)
        groups = list(_grouped(shapes, max_file_bytes))
        for number, names in enumerate(groups, 1):
            file = SINGLE if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
            self._begin(folder / file, {name: shapes[name] for name in names})
        if len(groups) > 1:
            total = sum(entry.stop - entry.start for entry in self._entries.values())
            weights = {name: entry.file.name for name, entry in self._entries.items()}
            (folder / INDEX).write_text(
                json.dumps({"metadata": {"total_size": total}, "weight_map": weights}, indent=2), encoding="utf-8"
            )

    @classmethod
    def one_file(cls, path: Path, shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> HfWriter:
        """A writer of a single file of any name, in place of one that is there."""
        writer = cls.__new__(cls)
        writer._start(resumed=True, allocated=True)
        writer._begin(path, shapes)
        return writer

    def _start(self, resumed: bool, allocated: bool) -> None:
        self._flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if resumed else os.O_EXCL)
        self._allocate = allocated
        self._entries: dict[str, Entry] = {}
        self._handles: dict[Path, int] = {}

    def write(self, name: str, tensor: torch.Tensor, first_row: int = 0) -> None:
        """Puts rows of a tensor, from first_row on, in their place."""
        entry = self._entries[name]
        start = entry.start
        if first_row:
            start += first_row * ((entry.stop - entry.start) // entry.shape[0])
        data = memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
        while data:
            written = os.pwrite(self._handles[entry.file], data, start)
            data, start = data[written:], start + written

    def close(self) -> None:
        """Syncs and closes every file."""
        while self._handles:
            _, handle = self._handles.popitem()
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _begin(self, path: Path, shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        position = 0
        for name, (shape, dtype) in shapes.items():
            stop = position + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [position, stop]}
            position = stop
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        handle = os.open(path, self._flags, 0o644)
        self._handles[path] = handle
        os.write(handle, struct.pack("<Q", len(text)) + text)
        os.ftruncate(handle, 8 + len(text) + position)
        if self._allocate:
            allocate(handle, 8 + len(text) + position)
        position = 8 + len(text)
        for name, (shape, dtype) in shapes.items():
            stop = position + math.prod(shape) * dtype.itemsize
            self._entries[name] = Entry(path, dtype, shape, position, stop)
            position = stop


def allocate(handle: int, nbytes: int) -> None:
    """Reserves room for a file's bytes, where the file system can; raises OSError when there isn't enough."""
    if not nbytes:
        return
    try:
        os.posix_fallocate(handle, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _grouped(shapes: dict[str, tuple[tuple[int, ...], torch.dtype]], limit: int) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for name, (shape, dtype) in shapes.items():
        nbytes = math.prod(shape) * dtype.itemsize
        if group and size + nbytes > limit:
            yield group
            group, size = [], 0
        group.append(name)
        size += nbytes
    yield group
