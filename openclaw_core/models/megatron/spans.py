"""Attention of blocks of a pack's rows, each over ranges of keys that it sees whole and then over itself. Forward only.

A prefix that several sequences share is read where it lies: no keys are gathered, and a block may be any part of a sequence.
On a GPU a block is cut into tiles, each of some rows times the heads that share their keys, so short blocks fill tiles too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from openclaw_core.models.megatron.attention import attend_one
from openclaw_core.models.megatron.packing import Pack, onto, ranges

LANES = 128
"""Rows times heads of a tile."""


@dataclass(frozen=True, slots=True)
class Block:
    """Queries of a pack's rows from row on, of which there are rows; the answers' rows begin at to.

    Every query sees the ranges (first row, how many) of prefix whole, and of its block the rows up to its own.
    """

    row: int
    rows: int
    prefix: tuple[tuple[int, int], ...]
    to: int


@dataclass(frozen=True, slots=True)
class Spans:
    """Blocks; tiles [N, 6] int32, the longest first: row, to, first row within the block, rows of the block, and the first and
    behind the last of its ranges [M, 2] int32, which are first row, how many. step: rows of a tile."""

    blocks: tuple[Block, ...]
    tiles: torch.Tensor
    ranges: torch.Tensor
    step: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows [U] of a pack that predict something, rising, as blocks; places [N]: where among them each of pack.rows is."""

    rows: torch.Tensor
    places: torch.Tensor
    spans: Spans


def fits(members: int, dim: int) -> bool:
    """Whether tiles are made for heads of this size, of which so many share a key."""
    return members <= LANES and dim in (16, 32, 64, 128, 256)


def blocks_of(pack: Pack) -> list[Block] | None:
    """A pack's parts; None where keys lie on other ranks."""
    if pack.shared is not None and pack.shared.group is not None:
        return None
    prefixes = pack.shared.prefixes if pack.shared is not None else ((),) * len(pack.lengths)
    firsts = np.cumsum((0, *pack.lengths[:-1])).tolist()
    return [Block(row, own, prefix, row) for row, own, prefix in zip(firsts, pack.lengths, prefixes, strict=True)]


def part(block: Block, start: int, rows: int) -> Block:
    """Of a block the rows from its start-th on, as a block that sees what they saw."""
    before = ((block.row, start),) if start else ()
    return Block(block.row + start, rows, (*block.prefix, *before), block.to + start)


def tiled(blocks: Sequence[Block], members: int, device: torch.device) -> Spans:
    """Blocks for queries of which so many heads share a key."""
    step = max(1, LANES // members)
    tiles: list[tuple[int, ...]] = []
    listed: list[tuple[int, int]] = []
    seen: list[int] = []
    for block in blocks:
        begin = len(listed)
        listed.extend(block.prefix)
        before = sum(count for _, count in block.prefix)
        for first in range(0, block.rows, step):
            tiles.append((block.row, block.to, first, block.rows, begin, len(listed)))
            seen.append(before + first)
    table = np.array(tiles, dtype=np.int32).reshape(-1, 6)[np.argsort(-np.array(seen, dtype=np.int64), kind="stable")]
    return Spans(tuple(blocks), onto(table, device), onto(np.array(listed, dtype=np.int32).reshape(-1, 2), device), step)


def wanted(pack: Pack, members: int) -> Wanted | None:
    """What a last layer has to answer; None where nothing is wanted or keys lie on other ranks."""
    blocks = blocks_of(pack)
    if blocks is None or not len(pack.places):
        return None
    rows = np.unique(pack.places)
    cuts: list[Block] = []
    for block in blocks:
        first, behind = np.searchsorted(rows, (block.row, block.row + block.rows)).tolist()
        for start, count in ranges(rows[first:behind]):
            cuts.append(replace(part(block, start - block.row, count), to=first))
            first += count
    device = pack.rows.device
    places = np.searchsorted(rows, pack.places)
    return Wanted(onto(rows, device), onto(places, device), tiled(cuts, members, device))


def attend_each(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans, out: torch.Tensor, scale: float) -> None:
    """Write what blocks of q [T, H, d] over k and v [T, G, d] answer to their rows of out [U, H, d], one after the other."""
    for block in spans.blocks:
        own = slice(block.row, block.row + block.rows)
        keys = [slice(first, first + count) for first, count in block.prefix] + [own]
        seen_k, seen_v = (torch.cat([t[at] for at in keys]) if len(keys) > 1 else t[own] for t in (k, v))
        one_q, one_k, one_v = (t.transpose(0, 1)[None] for t in (q[own], seen_k, seen_v))
        out[block.to : block.to + block.rows] = attend_one(one_q, one_k, one_v, scale)[0].transpose(0, 1)
