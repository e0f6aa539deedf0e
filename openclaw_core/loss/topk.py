"""Exact top-K of rows: sorted by falling value, ties to the lower id, over one rank's columns or all ranks'."""

from __future__ import annotations

import torch
from torch import Tensor

from openclaw_core.vocab import VocabShard

NO_ID = torch.iinfo(torch.int64).max


def local_topk(z: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and columns [C, k] of the k <= V largest of z [C, V]. Rows that hold NaN come back as torch.topk's."""
    if k == 0:
        return z[:, :0], z[:, :0].long()
    # One place more than asked shows where a tie reaches across the boundary: torch.topk picks any of those.
    values, columns = z.topk(min(k + 1, z.shape[1]), dim=1)
    if z.shape[1] > k:
        cut = values[:, k - 1] == values[:, k]
        values, columns = values[:, :k], columns[:, :k]
        rows = cut.nonzero().squeeze(1)
        if rows.numel():
            values[rows], columns[rows] = _with_ties(z[rows], values[rows, k - 1 : k], k)
    return by_value(values, columns)


def _with_ties(z: Tensor, least: Tensor, k: int) -> tuple[Tensor, Tensor]:
    above, equal = z > least, z == least
    taken = above | (equal & (equal.cumsum(1) <= k - above.sum(1, keepdim=True)))
    # Exactly k places a row are taken (fewer where NaN hides some); the lowest column weighs most.
    weight = torch.arange(z.shape[1], 0, -1, device=z.device, dtype=torch.int32)
    columns = (taken * weight).topk(k, dim=1).indices
    return z.gather(1, columns), columns


def by_value(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Both sorted along the last axis by falling value, then by rising id."""
    ids, order = ids.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, ids.gather(1, order)


def merge(values: Tensor, ids: Tensor, k: int, shard: VocabShard) -> tuple[Tensor, Tensor]:
    """Top-k over all ranks from each rank's own [N, <= k], in order; k is at most the real vocabulary."""
    if shard.group is None:
        return values, ids
    missing = (values.shape[0], k - values.shape[1])
    values = torch.cat((values, values.new_full(missing, float("-inf"))), dim=1)
    ids = torch.cat((ids, ids.new_full(missing, NO_ID)), dim=1)
    values, ids = by_value(shard.concat(values), shard.concat(ids))
    return values[:, :k], ids[:, :k]
