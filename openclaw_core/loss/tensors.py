"""Dataclasses of tensors, and small numerics that several files share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

D = TypeVar("D")


def map_tensors(record: D, change: Callable[[Tensor], Tensor]) -> D:
    """A copy of a dataclass with change applied to every tensor in it, nested dataclasses included."""

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        return map_tensors(value, change) if is_dataclass(value) and not isinstance(value, type) else value

    assert is_dataclass(record)
    assert not isinstance(record, type)
    return replace(record, **{f.name: changed(getattr(record, f.name)) for f in fields(record)})


def find(ids: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Which of ids [..., K] are in among [..., L] of the same row, and at which place; ids < 0 are in nothing."""
    ordered, order = among.sort(-1)
    place = torch.searchsorted(ordered, ids.contiguous()).clamp(max=among.shape[-1] - 1)
    found = (ordered.gather(-1, place) == ids) & (ids >= 0)
    return found, order.gather(-1, place)


def masked_softmax(logprobs: Tensor, mask: Tensor) -> Tensor:
    """Softmax of [N, S] over the places of mask; 0 elsewhere, and everywhere in rows without one."""
    logprobs = logprobs.masked_fill(~mask, float("-inf"))
    largest = logprobs.amax(-1, keepdim=True) if logprobs.shape[-1] else logprobs.sum(-1, keepdim=True)
    e = (logprobs - largest.masked_fill(largest == float("-inf"), 0)).exp()
    return e / e.sum(-1, keepdim=True).clamp(min=torch.finfo(e.dtype).tiny)


def with_rest(logprobs: Tensor, mask: Tensor) -> Tensor:
    """[N, S] with one more bin: log(1 - sum_v p_v) over the places of mask, bounded below by log eps."""
    mass = torch.where(mask, logprobs, float("-inf")).exp().sum(-1, keepdim=True)
    return torch.cat((logprobs, torch.log1p(-mass.clamp(max=1 - torch.finfo(mass.dtype).eps))), dim=-1)
