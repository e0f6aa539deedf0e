"""What is read from logits whose columns are split over ranks: log-sum-exp, top-K, log-probs at ids. No gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from openclaw_core.loss.logprobs import gather_logprobs, row_stats
from openclaw_core.models.megatron.builder import PackedGPT
from openclaw_core.vocab import VocabShard

_CHUNK_VALUES = 1 << 27


@dataclass(frozen=True, slots=True)
class RowScores:
    """Of N rows: lse [N], top_ids [N, K] int64, top_logprobs [N, K], and log-probs at asked ids [N, J] or None."""

    lse: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    at_ids: torch.Tensor | None


def row_chunks(rows: torch.Tensor, columns: VocabShard) -> Iterator[slice]:
    """Slices of rows whose float32 logits stay within half a GiB; one, empty, where there are no rows."""
    step = max(1, _CHUNK_VALUES // columns.size)
    for start in range(0, max(1, rows.shape[0]), step):
        yield slice(start, min(start + step, rows.shape[0]))


@torch.no_grad()
def score_rows(
    model: PackedGPT, rows: torch.Tensor, *, k: int, temperature: float, vocab: int, ids: torch.Tensor | None = None
) -> RowScores:
    """Score final hidden rows [N, hidden] over the first vocab ids, at the temperature, a chunk of logits at a time.

    The softmax is over ids below vocab only. Top-K: falling log-prob, ties to the lower id. ids [N, J] are global.
    Every rank of the tensor-parallel group must call it, and gets the same answer.
    """
    shard = _shard(model, vocab)
    parts = [
        _score_chunk(model.logits(rows[part]), shard, k, temperature, None if ids is None else ids[part])
        for part in row_chunks(rows, shard)
    ]
    return RowScores(
        lse=torch.cat([p.lse for p in parts]),
        top_ids=torch.cat([p.top_ids for p in parts]),
        top_logprobs=torch.cat([p.top_logprobs for p in parts]),
        at_ids=None if ids is None else torch.cat([p.at_ids for p in parts if p.at_ids is not None]),
    )


@torch.no_grad()
def logprobs_at(model: PackedGPT, rows: torch.Tensor, ids: torch.Tensor, *, temperature: float, vocab: int) -> torch.Tensor:
    """Log-probs [N, J] of ids [N, J] at rows [N, hidden]; otherwise as score_rows, without the top-K."""
    shard = _shard(model, vocab)
    out = torch.empty(ids.shape, dtype=torch.float32, device=rows.device)
    for part in row_chunks(rows, shard):
        out[part] = gather_logprobs(model.logits(rows[part]), ids[part], shard, temperature=temperature)
    return out


def _shard(model: PackedGPT, vocab: int) -> VocabShard:
    columns = model.columns
    return replace(columns, real_vocab=min(vocab, columns.real_vocab))


def _score_chunk(logits: torch.Tensor, shard: VocabShard, k: int, temperature: float, ids: torch.Tensor | None) -> RowScores:
    first = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    stats = row_stats(logits, shard, sampled_ids=first, temperature=temperature, k=k, gather_ids=ids)
    return RowScores(stats.lse, stats.top_ids, stats.top_logprobs, stats.gathered)
