"""Boxes of stored tensors, read from torch_dist folders one at a time. No process group."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from openclaw_core.checkpoint.metadata import Chunk, Contents, Opaque, Stored, read_contents
from openclaw_core.checkpoint.saved_tensor import map_saved_tensor
from openclaw_core.checkpoint.sniff import resolve
from openclaw_core.errors import UserError

COMMON_OBJECT = "common_state/shard_0_1"


class TorchDistReader:
    """Reads boxes of the tensors of one torch_dist folder (the one with .metadata), mapped from its files.

    contents lists everything stored; optimizer state is in it under its own names and is read only when asked for.
    A folder that has no index yet is read with the contents given.
    """

    def __init__(self, folder: Path, contents: Contents | None = None) -> None:
        self.folder = folder
        self.contents: Contents = contents or read_contents(folder)
        self._near: dict[str, _Near] = {}

    def read(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        """The box [offsets, offsets + sizes) of a stored tensor; raises UserError when a part of it isn't stored."""
        stored = self.contents.tensors[name]
        out: torch.Tensor | None = None
        covered = 0
        if name not in self._near:
            self._near[name] = _Near(stored)
        for chunk in self._near[name].chunks(offsets, sizes):
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


class _Near:
    """Finds the chunks that can touch a box without looking at all of them: there is one per layer and expert."""

    def __init__(self, stored: Stored) -> None:
        rank = len(stored.shape)
        self._depth = next((axis for axis in range(rank) if any(chunk.sizes[axis] != 1 for chunk in stored.chunks)), rank)
        self._chunks: dict[tuple[int, ...], list[Chunk]] = {}
        for chunk in stored.chunks:
            self._chunks.setdefault(chunk.offsets[: self._depth], []).append(chunk)

    def chunks(self, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Chunk]:
        ranges = [range(start, start + size) for start, size in zip(offsets, sizes, strict=True)]
        for key in itertools.product(*ranges[: self._depth]):
            yield from self._chunks.get(key, ())


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


def empty_extra_state() -> bytes:
    """What megatron stores as a layer's extra state when there is none: a list with one None."""
    buffer = io.BytesIO()
    torch.save([None], buffer)
    return buffer.getvalue()


__all__ = ["TorchDistReader", "empty_extra_state", "resolve"]
