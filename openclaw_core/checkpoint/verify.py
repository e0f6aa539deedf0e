"""Compares both sides of a conversion bit by bit, unit by unit, and hashes every tensor on the way."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from openclaw_core.checkpoint.hf import HfReader
from openclaw_core.checkpoint.mapping import Mapping, Unit
from openclaw_core.checkpoint.torch_dist import TorchDistReader

Progress = Callable[[str, int, int], None]
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class TensorCheck:
    """One Hugging Face tensor after the comparison. sha256 is of its bytes in the converted dtype."""

    name: str
    stored: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str
    equal: bool


def compare(
    mapping: Mapping, hf: HfReader, stored: TorchDistReader, made: Literal["hf", "torch_dist"], progress: Progress | None = None
) -> tuple[TensorCheck, ...]:
    """Unpacks every box of the torch_dist side and compares it with the Hugging Face side, bitwise.

    made is the side that the conversion wrote: the other one is cast to its dtype first, and it is the one hashed.
    Padding must be zero on a side that we wrote. Holds one unit in memory.
    """
    digests = {name: hashlib.sha256() for name in mapping.hf}
    equal = dict.fromkeys(mapping.hf, True)
    dtypes: dict[str, str] = {}
    total = sum(_nbytes(stored, unit) for unit in mapping.units)
    done = 0
    for unit in mapping.units:
        box = stored.read(unit.stored, unit.offsets, unit.sizes)
        if not unit.slices and made == "torch_dist" and box.count_nonzero():
            equal[next(name for name, target in mapping.sources.items() if target == unit.stored)] = False
        for part, source in zip(unit.unpack(box), unit.slices, strict=True):
            other = hf.read(source.name, source.rows)
            written, origin = (part, other) if made == "torch_dist" else (other, part)
            dtypes[source.name] = str(written.dtype).removeprefix("torch.")
            written = written.contiguous()
            digests[source.name].update(_memory(written))
            equal[source.name] &= same_bits(written, origin.to(written.dtype))
        done += box.nbytes
        if progress is not None:
            progress("verify", done, total)
    return tuple(
        TensorCheck(name, mapping.sources[name], shape, dtypes[name], digests[name].hexdigest(), equal[name])
        for name, shape in mapping.hf.items()
    )


def hash_tensors(mapping: Mapping, side: HfReader | TorchDistReader) -> dict[str, str]:
    """SHA-256 of every Hugging Face tensor of one side, by name; a torch_dist's are unpacked first."""
    digests = {name: hashlib.sha256() for name in mapping.hf}
    for unit in mapping.units:
        if isinstance(side, HfReader):
            parts = [side.read(source.name, source.rows) for source in unit.slices]
        else:
            parts = unit.unpack(side.read(unit.stored, unit.offsets, unit.sizes))
        for part, source in zip(parts, unit.slices, strict=True):
            digests[source.name].update(_memory(part.contiguous()))
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _memory(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype hold the same bits."""
    integers = _INTEGERS[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


def _nbytes(stored: TorchDistReader, unit: Unit) -> int:
    return math.prod(unit.sizes) * stored.contents.tensors[unit.stored].dtype.itemsize
