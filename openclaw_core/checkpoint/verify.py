"""Compares both sides of a conversion bit by bit, unit by unit, and hashes every tensor on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from openclaw_core.checkpoint.hf import HfReader
from openclaw_core.checkpoint.mapping import Mapping
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


def compare(mapping: Mapping, hf: HfReader, stored: TorchDistReader, progress: Progress | None = None) -> tuple[TensorCheck, ...]:
    """Unpacks every box of the torch_dist side and compares it with the Hugging Face side, bitwise.

    Where the dtypes differ, the side that was converted is compared with the other one cast to its dtype, and the
    torch_dist side is hashed. Holds one unit in memory.
    """
    digests = {name: hashlib.sha256() for name in mapping.hf}
    equal = dict.fromkeys(mapping.hf, True)
    total = sum(_nbytes(mapping, stored, unit.stored, unit.sizes) for unit in mapping.units)
    done = 0
    for unit in mapping.units:
        box = stored.read(unit.stored, unit.offsets, unit.sizes)
        if not unit.slices and box.count_nonzero():
            equal[next(name for name, target in mapping.sources.items() if target == unit.stored)] = False
        for part, source in zip(unit.unpack(box), unit.slices, strict=True):
            part = part.contiguous()
            digests[source.name].update(memoryview(part.reshape(-1).view(torch.uint8).numpy()))
            equal[source.name] &= same_bits(part, hf.read(source.name, source.rows))
        done += box.nbytes
        if progress is not None:
            progress("verify", done, total)
    dtypes = {name: str(stored.contents.tensors[stored_name(mapping, name, stored)].dtype).removeprefix("torch.") for name in mapping.hf}
    return tuple(
        TensorCheck(name, mapping.sources[name], shape, dtypes[name], digests[name].hexdigest(), equal[name]) for name, shape in mapping.hf.items()
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits; the wider one is cast first where the dtypes differ."""
    if a.dtype != b.dtype:
        a, b = (a, b.to(a.dtype)) if a.element_size() <= b.element_size() else (a.to(b.dtype), b)
    integers = _INTEGERS[a.element_size()]
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


def stored_name(mapping: Mapping, name: str, stored: TorchDistReader) -> str:
    """The stored tensor that holds a Hugging Face tensor (its gate half in a split layout)."""
    target = mapping.sources[name]
    return target if target in stored.contents.tensors else f"{target}_w"


def _nbytes(mapping: Mapping, stored: TorchDistReader, name: str, sizes: tuple[int, ...]) -> int:
    count = stored.contents.tensors[name].dtype.itemsize
    for size in sizes:
        count *= size
    return count
