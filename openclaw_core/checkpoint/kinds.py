"""The ways in which Hugging Face tensors lie in megatron's. Each kind packs and unpacks; the engine knows no more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from openclaw_core.errors import UserError
from openclaw_core.models.architecture import Architecture

Shape = tuple[int, ...]
PIECE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Piece:
    """A box of one layer's tensor, rows [start, start + rows) of the tensor named by suffix, and the rows of each
    Hugging Face tensor that make it up (None: all rows). A piece without sources is padding."""

    start: int
    rows: int
    sources: tuple[tuple[int, tuple[int, int] | None], ...]
    suffix: str = ""


class Kind(Protocol):
    """How the tensors of a rule lie in the stored one. shapes are the sources', in the rule's order."""

    title: str

    def stored_shape(self, shapes: list[Shape], padded: int) -> Shape:
        """Shape of the stored tensor."""

    def pieces(self, shapes: list[Shape], itemsize: int, padded: int, split: bool) -> Iterator[Piece]:
        """Boxes that tile the stored tensor."""

    def pack(self, parts: list[torch.Tensor], arch: Architecture) -> torch.Tensor:
        """The box of the sources' rows."""

    def unpack(self, box: torch.Tensor, arch: Architecture) -> list[torch.Tensor]:
        """The sources' rows of the box: the inverse of pack."""


class Replicated:
    """One tensor, stored as it is; megatron splits it over ranks by rows or columns when it loads."""

    title = "as it is"

    def stored_shape(self, shapes: list[Shape], padded: int) -> Shape:
        return shapes[0]

    def pieces(self, shapes: list[Shape], itemsize: int, padded: int, split: bool) -> Iterator[Piece]:
        yield Piece(0, shapes[0][0], ((0, None),))

    def pack(self, parts: list[torch.Tensor], arch: Architecture) -> torch.Tensor:
        return parts[0]

    def unpack(self, box: torch.Tensor, arch: Architecture) -> list[torch.Tensor]:
        return [box]


class PerGroupQkv(Replicated):
    """q, k and v (weights or biases) by query group: [q heads of the group | its k head | its v head]."""

    title = "q, k, v by query group"

    def stored_shape(self, shapes: list[Shape], padded: int) -> Shape:
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def pieces(self, shapes: list[Shape], itemsize: int, padded: int, split: bool) -> Iterator[Piece]:
        yield Piece(0, sum(shape[0] for shape in shapes), ((0, None), (1, None), (2, None)))

    def pack(self, parts: list[torch.Tensor], arch: Architecture) -> torch.Tensor:
        rest = parts[0].shape[1:]
        return torch.cat([part.reshape(arch.kv_heads, -1, *rest) for part in parts], 1).reshape(-1, *rest)

    def unpack(self, box: torch.Tensor, arch: Architecture) -> list[torch.Tensor]:
        rest, d = box.shape[1:], arch.head_dim
        groups = box.reshape(arch.kv_heads, -1, *rest)
        return [part.reshape(-1, *rest) for part in groups.split([arch.heads // arch.kv_heads * d, d, d], 1)]


class GatedMlp(Replicated):
    """gate above up, or two tensors of their own (megatron's singleton_local_shards) in a split layout."""

    title = "gate, up"

    def stored_shape(self, shapes: list[Shape], padded: int) -> Shape:
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def pieces(self, shapes: list[Shape], itemsize: int, padded: int, split: bool) -> Iterator[Piece]:
        gate, up = (shape[0] for shape in shapes)
        yield Piece(0, gate, ((0, None),), "_w" if split else "")
        yield Piece(0 if split else gate, up, ((1, None),), "_v" if split else "")


class Vocabulary(Replicated):
    """Rows by token id, in pieces of bounded size, with rows of zeros up to the padded vocabulary."""

    title = "padded vocabulary"

    def stored_shape(self, shapes: list[Shape], padded: int) -> Shape:
        return (padded, *shapes[0][1:])

    def pieces(self, shapes: list[Shape], itemsize: int, padded: int, split: bool) -> Iterator[Piece]:
        rows = shapes[0][0]
        step = max(1, PIECE_BYTES // (math.prod(shapes[0][1:]) * itemsize))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            yield Piece(start, stop - start, ((0, (start, stop)),))
        if padded > rows:
            yield Piece(rows, padded - rows, ())


class Turned(Replicated):
    """One expert of a tensor that holds all of a layer's, input by output: stored output by input, as all else is."""

    title = "experts in one tensor, transposed"

    def stored_shape(self, shapes: list[Shape], padded: int) -> Shape:
        return shapes[0][::-1]

    def pieces(self, shapes: list[Shape], itemsize: int, padded: int, split: bool) -> Iterator[Piece]:
        yield Piece(0, shapes[0][1], ((0, None),))

    def pack(self, parts: list[torch.Tensor], arch: Architecture) -> torch.Tensor:
        return parts[0].squeeze(0).t().contiguous()

    def unpack(self, box: torch.Tensor, arch: Architecture) -> list[torch.Tensor]:
        return [box.t().unsqueeze(0)]


class GatedTurned(Turned):
    """The same of gate and up beside each other."""

    title = "gate, up of experts in one tensor, transposed"

    def pieces(self, shapes: list[Shape], itemsize: int, padded: int, split: bool) -> Iterator[Piece]:
        if split:
            raise UserError(
                "The checkpoint stores gate and up apart (singleton_local_shards), its model's release in one tensor.",
                "Save it without singleton_local_shards.",
            )
        return super().pieces(shapes, itemsize, padded, split)
