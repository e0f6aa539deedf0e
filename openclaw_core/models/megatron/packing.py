"""Packed (thd) micro-batches: sequences one after another, no padding between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from openclaw_core.errors import UserError


@dataclass(frozen=True, slots=True)
class SequenceIds:
    """One sequence to forward: prompt ids, then R response ids whose predicting rows are wanted."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Which rows each block of queries reads keys and values from: its prefix, then itself, in order of position.

    rows [sum of lengths] int64; cu_seqlens [S' + 1] int32; lengths: the same on the host. The last query of a block sees all
    of the block's keys, the one before it all but the last. Where group is given, rows count through the keys of its ranks
    one after the other (context.py); where not, prefixes are the ranges (first row, how many) of what comes before each block.
    """

    rows: torch.Tensor
    cu_seqlens: torch.Tensor
    lengths: tuple[int, ...]
    prefixes: tuple[tuple[tuple[int, int], ...], ...]
    group: Any = None

    @classmethod
    def of(cls, keys: Sequence[np.ndarray], own: Sequence[int], device: torch.device, group: Any = None) -> SharedKeys:
        """From the key rows of each block, of which the last are its own."""
        lengths = tuple(len(rows) for rows in keys)
        prefixes = tuple(ranges(rows[: len(rows) - last]) for rows, last in zip(keys, own, strict=True))
        ends = np.cumsum((0, *lengths), dtype=np.int32)
        return cls(onto(np.concatenate(keys), device), onto(ends, device), lengths, prefixes, group)


@dataclass(frozen=True, slots=True)
class Pack:
    """S sequences in T rows, N of which predict response ids.

    input_ids, positions [T] int64; cu_seqlens [S' + 1] int32 (S' counts the filler behind the sequences, if any);
    lengths: the same on the host; rows [N]: the row that predicts each response id, places the same on the host;
    response_ids [N]; row_counts: R of each sequence, on the host. Where shared is given, the S' parts are the rows that
    sequences don't have in common (prefix.py) or that this rank holds (context.py), lengths and cu_seqlens count those, and
    attention reads the keys that shared names.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    cu_seqlens: torch.Tensor
    lengths: tuple[int, ...]
    rows: torch.Tensor
    places: np.ndarray
    response_ids: torch.Tensor
    row_counts: tuple[int, ...]
    shared: SharedKeys | None = None

    @property
    def max_length(self) -> int:
        return max(self.lengths)


def make_pack(sequences: Sequence[SequenceIds], device: torch.device, *, multiple: int = 1, filler_id: int = 0) -> Pack:
    """Pack sequences; the number of rows is filled up to a multiple (sequence parallelism cuts it evenly).

    The filler is a sequence of its own behind the others, so it changes nothing for them. Raises UserError
    for an empty prompt: nothing would predict its first response id.
    """
    check_prompts(sequences)
    ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    response: list[int] = []
    lengths: list[int] = []
    for sequence in sequences:
        start = len(ids) + len(sequence.prompt_ids) - 1
        rows.extend(range(start, start + len(sequence.response_ids)))
        response.extend(sequence.response_ids)
        ids.extend(sequence.prompt_ids)
        ids.extend(sequence.response_ids)
        positions.extend(range(len(sequence)))
        lengths.append(len(sequence))
    filler = -len(ids) % multiple
    if filler:
        ids.extend([filler_id] * filler)
        positions.extend(range(filler))
        lengths.append(filler)
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    places = np.array(rows, dtype=np.int64)
    return Pack(
        input_ids=onto(ids, device),
        positions=onto(positions, device),
        cu_seqlens=onto(ends, device, torch.int32),
        lengths=tuple(lengths),
        rows=onto(places, device),
        places=places,
        response_ids=onto(response, device),
        row_counts=tuple(len(s.response_ids) for s in sequences),
    )


def onto(values: Sequence[int] | np.ndarray, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Whole numbers on a device: an array's dtype, int64 for a sequence, unless dtype says another. Waits for no GPU."""
    if not isinstance(values, np.ndarray):
        dtype = dtype or torch.int64
    tensor = torch.as_tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def ranges(rows: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Whole numbers as ranges (first, how many) of neighbours, in their order."""
    parts = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return tuple((int(part[0]), len(part)) for part in parts if len(part))


def check_prompts(sequences: Sequence[SequenceIds]) -> None:
    """Raise UserError for an empty prompt: nothing would predict its first response id."""
    if any(not sequence.prompt_ids for sequence in sequences):
        raise UserError("A sequence has an empty prompt: nothing predicts its first response id.", "Give at least one id.")


def plan_packs(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group indices so that each group's tokens stay within the budget (first fit, longest first).

    A sequence longer than the budget gets a group of its own. Deterministic: ties keep their order.
    """
    groups: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for g, left in enumerate(room):
            if lengths[index] <= left:
                groups[g].append(index)
                room[g] -= lengths[index]
                break
        else:
            groups.append([index])
            room.append(budget - lengths[index])
    return [sorted(group) for group in groups]


def split_evenly(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Indices of each part so that tokens are spread evenly (longest first to the lightest part)."""
    shares: list[list[int]] = [[] for _ in range(parts)]
    weight = [0] * parts
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        lightest = min(range(parts), key=lambda p: (weight[p], p))
        shares[lightest].append(index)
        weight[lightest] += lengths[index]
    return [sorted(share) for share in shares]


def split_rows(rows: torch.Tensor, counts: Iterable[int]) -> list[torch.Tensor]:
    """Cut packed rows [N, ...] back into one tensor per sequence [R_i, ...]."""
    return list(torch.split(rows, list(counts)))
