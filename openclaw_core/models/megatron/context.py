"""Context parallelism: a pack cut over ranks, each of which sees the keys of all.

Rows are cut into two chunks per rank, one early and one late (rank r has chunks r and 2 ranks - 1 - r): a late query has
more keys to read, so every rank has as much to do. Keys and values travel by all-gather, their gradients by reduce-scatter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from openclaw_core.models.megatron.core import parallel_state
from openclaw_core.models.megatron.packing import Pack, SharedKeys

CHUNKS = 2


@dataclass(frozen=True, slots=True)
class ContextPart:
    """This rank's part of a pack. held [n]: which of the pack's N response rows are here, in rising order.

    group joins the ranks that share the pack.
    """

    pack: Pack
    held: torch.Tensor
    group: Any


def context_multiple(ranks: int) -> int:
    """Of which number the rows of a pack must be a multiple, to be cut over ranks."""
    return CHUNKS * ranks if ranks > 1 else 1


def own_part(pack: Pack) -> ContextPart | None:
    """This rank's part of a pack that make_pack filled up to a multiple of context_multiple(); None without context ranks."""
    if parallel_state.get_context_parallel_world_size() == 1:
        return None
    return cut(pack, parallel_state.get_context_parallel_group())


def cut(pack: Pack, group: Any) -> ContextPart:
    """The part of group's member that calls. Sequences may begin and end anywhere."""
    ranks, rank = group.size(), group.rank()
    size = sum(pack.lengths) // (CHUNKS * ranks)
    mine = [np.arange(chunk * size, (chunk + 1) * size) for chunk in (rank, CHUNKS * ranks - 1 - rank)]
    own = torch.from_numpy(np.concatenate(mine)).to(pack.input_ids.device)
    place = np.full(sum(pack.lengths), -1)
    place[np.concatenate(mine)] = np.arange(CHUNKS * size)
    at = place[pack.places]
    held = np.flatnonzero(at >= 0)
    blocks, keys = _blocks(pack.lengths, mine, size, ranks)
    ends = np.cumsum((0, *blocks), dtype=np.int32)
    device = pack.input_ids.device
    local = replace(
        pack,
        input_ids=pack.input_ids[own],
        positions=pack.positions[own],
        cu_seqlens=torch.from_numpy(ends).to(device),
        lengths=tuple(blocks),
        rows=torch.from_numpy(at[held]).to(device),
        places=at[held],
        response_ids=pack.response_ids[torch.from_numpy(held).to(device)],
        row_counts=(),
        shared=SharedKeys.of(keys, blocks, device, group),
    )
    return ContextPart(local, torch.from_numpy(held).to(device), group)


def _blocks(lengths: tuple[int, ...], chunks: list[np.ndarray], size: int, ranks: int) -> tuple[list[int], list[np.ndarray]]:
    """What each sequence has in each chunk: rows, and the keys its last row sees, as places among the gathered rows."""
    ends = np.cumsum(lengths)
    blocks, keys = [], []
    for chunk in chunks:
        for end, length in zip(ends.tolist(), lengths, strict=True):
            first, last = max(end - length, int(chunk[0])), min(end, int(chunk[-1]) + 1)
            if first < last:
                blocks.append(last - first)
                keys.append(_gathered_place(np.arange(end - length, last), size, ranks))
    return blocks, keys


def _gathered_place(rows: np.ndarray, size: int, ranks: int) -> np.ndarray:
    """Where the rows of a pack lie once the ranks' parts are one after the other."""
    chunk, offset = rows // size, rows % size
    late = chunk >= ranks
    rank = np.where(late, CHUNKS * ranks - 1 - chunk, chunk)
    return (rank * CHUNKS + late) * size + offset
