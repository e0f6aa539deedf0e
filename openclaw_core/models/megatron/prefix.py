"""Packs in which a prefix that several sequences begin with is forwarded once and seen by all of them. Forward only.

Sequences are put in the order of their ids. Each then forwards only the rows that differ from the one before it, and its
attention reads keys and values of its whole length: of the shared prefix from where that lies in the pack, of the rest from
its own rows. Whatever the tree of prefixes is, a sequence is one block of queries and one list of key rows, and tensor,
sequence and pipeline parallelism see a pack like any other.

Cost: none beyond the rows where the kernel of spans.py reads keys in their places; elsewhere per layer one gather of the keys
and values of sum(lengths) rows, about half a percent of the forward of as many tokens (8 KiB of traffic against 200 MFLOP for
a layer of Qwen3-4B). Plain packs, where nothing is shared, pay none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from openclaw_core.models.megatron.packing import (
    Pack,
    SequenceIds,
    SharedKeys,
    check_prompts,
    make_pack,
    onto,
    plan_packs,
    split_evenly,
)

WORTH = 100
"""A prefix is shared from 1 / WORTH of a sequence's length on; below that a gather costs more than the rows."""
KEYS_PER_TOKEN = 4
"""A pack has at most so many key rows per token of its budget: to gather them for many short suffixes takes memory too."""


@dataclass(frozen=True, slots=True)
class _Sorted:
    """order: indices in the order of ids; shared[j]: how many first ids order[j] has in common with order[j - 1]."""

    order: tuple[int, ...]
    shared: tuple[int, ...]


def make_shared_pack(sequences: Sequence[SequenceIds], device: torch.device, *, multiple: int = 1, filler_id: int = 0) -> Pack:
    """As make_pack, with shared prefixes forwarded once; rows and counts come in the order of sequences.

    Raises UserError as make_pack does.
    """
    check_prompts(sequences)
    plan = _sort(sequences)
    if not any(plan.shared):
        return make_pack(sequences, device, multiple=multiple, filler_id=filler_id)
    rows_of, blocks, total = _place(sequences, plan)
    own = [SequenceIds(_ids(sequences[i])[start:], ()) for i, start in blocks]
    flat = make_pack(own, device, multiple=multiple, filler_id=filler_id)
    filler = sum(flat.lengths) - total
    keys = [rows_of[i] for i, _ in blocks] + ([np.arange(total, total + filler)] if filler else [])
    starts = [start for _, start in blocks] + ([0] if filler else [])
    positions = flat.positions + onto(np.repeat(starts, flat.lengths), device)
    places = np.concatenate([rows_of[i][len(s.prompt_ids) - 1 : len(s) - 1] for i, s in enumerate(sequences)])
    response = [identity for s in sequences for identity in s.response_ids]
    return replace(
        flat,
        positions=positions,
        rows=onto(places, device),
        places=places,
        response_ids=onto(response, device),
        row_counts=tuple(len(s.response_ids) for s in sequences),
        shared=SharedKeys.of(keys, flat.lengths, device),
    )


def added_tokens(sequences: Sequence[SequenceIds]) -> list[int]:
    """Tokens that each sequence adds to a pack of all of them; their sum is what is forwarded."""
    plan = _sort(sequences)
    added = [0] * len(sequences)
    for index, shared in zip(plan.order, plan.shared, strict=True):
        added[index] = len(sequences[index]) - shared
    return added


def plan_shared(sequences: Sequence[SequenceIds], budget: int) -> list[list[int]]:
    """Group indices so that each group forwards at most budget tokens, keeping together what shares a prefix.

    Where a tree of prefixes is larger than the budget it is cut, and the prefix is forwarded again in the next group. A
    sequence longer than the budget gets a group of its own.
    """
    plan = _sort(sequences)
    blocks: list[list[int]] = []
    costs: list[int] = []
    tokens = keys = 0
    for index, shared in zip(plan.order, plan.shared, strict=True):
        length = len(sequences[index])
        fits = shared and tokens + length - shared <= budget and keys + length <= KEYS_PER_TOKEN * budget
        if not fits:
            blocks.append([])
            costs.append(0)
            tokens = keys = shared = 0
        tokens, keys = tokens + length - shared, keys + length
        blocks[-1].append(index)
        costs[-1] = max(tokens, -(-keys // KEYS_PER_TOKEN))
    return [sorted(index for block in group for index in blocks[block]) for group in plan_packs(costs, budget)]


def split_shared(owned: Sequence[Sequence[SequenceIds]], parts: int) -> list[list[int]]:
    """Indices of the owners (each with its sequences) for every part, so that the slowest part forwards the fewest tokens.

    Of two ways the better one: owners in the order of their ids, cut into runs, which keeps prefixes of different owners
    together; or the heaviest owner to the lightest part, which is more even where owners share nothing.
    """
    if parts == 1:
        return [list(range(len(owned)))]
    weights = [sum(added_tokens(sequences)) for sequences in owned]
    even = split_evenly(weights, parts)
    firsts = [sequences[0] if sequences else SequenceIds((), ()) for sequences in owned]
    runs = _runs(_sort(firsts).order, weights, parts)
    return min(even, runs, key=lambda shares: max(_forwarded(owned, share) for share in shares))


def _runs(order: Sequence[int], weights: Sequence[int], parts: int) -> list[list[int]]:
    shares: list[list[int]] = [[] for _ in range(parts)]
    total, before = max(1, sum(weights)), 0
    for index in order:
        shares[min(parts - 1, (2 * before + weights[index]) * parts // (2 * total))].append(index)
        before += weights[index]
    return [sorted(share) for share in shares]


def _forwarded(owned: Sequence[Sequence[SequenceIds]], share: Sequence[int]) -> int:
    return sum(added_tokens([sequence for index in share for sequence in owned[index]]))


def _ids(sequence: SequenceIds) -> tuple[int, ...]:
    return (*sequence.prompt_ids, *sequence.response_ids)


def _sort(sequences: Sequence[SequenceIds]) -> _Sorted:
    """Big-endian bytes of ids compare as ids do, and much faster."""
    arrays = [np.array(_ids(sequence), dtype=">u4") for sequence in sequences]
    keys = [array.tobytes() for array in arrays]
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    shared = [0] * len(order)
    for place in range(1, len(order)):
        one, other = arrays[order[place - 1]], arrays[order[place]]
        count = min(len(one), len(other))
        differs = one[:count] != other[:count]
        common = int(differs.argmax()) if differs.any() else count
        shared[place] = common if common * WORTH >= len(other) else 0
    return _Sorted(tuple(order), tuple(shared))


def _place(sequences: Sequence[SequenceIds], plan: _Sorted) -> tuple[list[np.ndarray], list[tuple[int, int]], int]:
    """Of each sequence the pack's row of every position; (sequence, first own position) of each block; rows in all."""
    rows_of = [np.empty(0, dtype=np.int64)] * len(sequences)
    blocks: list[tuple[int, int]] = []
    total, before = 0, np.empty(0, dtype=np.int64)
    for index, shared in zip(plan.order, plan.shared, strict=True):
        own = len(sequences[index]) - shared
        before = rows_of[index] = np.concatenate((before[:shared], np.arange(total, total + own)))
        if own:
            blocks.append((index, shared))
            total += own
    return rows_of, blocks, total
