"""Sampling of one token for each row of a batch, without a Python loop over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from openclaw_core.rollout.engines.embedded.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingVectors:
    """The parameters of n rows as tensors [n]; filters is None when no row filters."""

    temperature: torch.Tensor
    greedy: torch.Tensor | None
    filters: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None

    @staticmethod
    def of(params: Sequence[SamplingParams], device: torch.device) -> SamplingVectors:
        def vector(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        greedy = [p.greedy for p in params]
        filters = None
        if any(p.filtered for p in params):
            top_k = torch.tensor([p.top_k if p.top_k > 0 else 1 << 30 for p in params], device=device)
            filters = (top_k, vector([p.top_p for p in params]), vector([p.min_p for p in params]))
        return SamplingVectors(
            temperature=vector([p.temperature for p in params]),
            greedy=torch.tensor(greedy, device=device) if any(greedy) else None,
            filters=filters,
        )


def scaled_logprobs(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """log softmax(logits / temperature), [n, V] fp32. A row with NaN or +inf among its logits comes out as NaN."""
    return torch.log_softmax(logits.float() / temperature[:, None], dim=-1)


def sample(logprobs: torch.Tensor, vectors: SamplingVectors, uniforms: torch.Tensor) -> torch.Tensor:
    """Ids [n] by inverting the cumulative distribution at uniforms [n] in [0, 1) (float64).

    One number per row, so a seeded row samples the same whatever shares its batch. Filters act jointly on the unfiltered
    distribution, as in SGLang's torch backend: rank < top_k, mass of better ids <= top_p, probability >= min_p * best.
    """
    if vectors.greedy is not None and bool(vectors.greedy.all()):
        return logprobs.argmax(-1)
    probs = logprobs.double().exp()
    if vectors.filters is not None:
        probs = probs.masked_fill(_dropped(probs, *vectors.filters), 0.0)
    ids = _invert(probs, uniforms)
    return ids if vectors.greedy is None else torch.where(vectors.greedy, logprobs.argmax(-1), ids)


def _dropped(probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """[n, V] in the order of ids, so that a row without filters samples the same beside one that has some."""
    best_first, order = probs.sort(dim=-1, descending=True, stable=True)
    better = best_first.cumsum(-1) - best_first
    ranks = torch.arange(probs.shape[-1], device=probs.device)
    drop = (ranks >= top_k[:, None]) | ((better > top_p[:, None]) & (top_p < 1.0)[:, None])
    drop |= best_first < min_p[:, None] * best_first[:, :1]
    return torch.empty_like(drop).scatter_(-1, order, drop)


def _invert(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """First index whose cumulative mass exceeds uniform * total; never one of no mass, since uniform < 1."""
    cumulative = probs.cumsum(-1)
    target = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=probs.shape[-1] - 1)


def top_pairs(logprobs: torch.Tensor, wanted: Sequence[int]) -> list[list[tuple[float, int]]]:
    """For each row its wanted number of most probable ids as (log-prob, id); empty lists when no row wants any."""
    k = min(max(wanted), logprobs.shape[-1])
    if k == 0:
        return [[] for _ in wanted]
    values, ids = logprobs.topk(k, dim=-1)
    values = values.clamp_(min=torch.finfo(values.dtype).min)
    return [list(zip(v[:n], i[:n], strict=True)) for v, i, n in zip(values.tolist(), ids.tolist(), wanted, strict=True)]


def watched_pairs(logprobs: torch.Tensor, ids: Sequence[int]) -> list[tuple[float, int]]:
    """Log-probs [V] at given ids as (log-prob, id)."""
    return list(zip(logprobs[list(ids)].clamp(min=torch.finfo(logprobs.dtype).min).tolist(), ids, strict=True))
