"""What is read from logits whose columns are split over ranks: log-sum-exp, top-K, log-probs at ids. No gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from openclaw_core.models.megatron.builder import PackedGPT, VocabColumns

_CHUNK_VALUES = 1 << 27


@dataclass(frozen=True, slots=True)
class RowScores:
    """Of N rows: lse [N], top_ids [N, K] int64, top_logprobs [N, K], and log-probs at asked ids [N, J] or None."""

    lse: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    at_ids: torch.Tensor | None


def row_chunks(rows: torch.Tensor, columns: VocabColumns) -> Iterator[slice]:
    """Slices of rows whose float32 logits stay within half a GiB."""
    step = max(1, _CHUNK_VALUES // columns.size)
    for start in range(0, rows.shape[0], step):
        yield slice(start, min(start + step, rows.shape[0]))


@torch.no_grad()
def score_rows(
    model: PackedGPT, rows: torch.Tensor, *, k: int, temperature: float, vocab: int, ids: torch.Tensor | None = None
) -> RowScores:
    """Score final hidden rows [N, hidden] over the first vocab ids, at the temperature, a chunk of logits at a time.

    The softmax is over ids below vocab only. Top-K: falling log-prob, ties to the lower id. ids [N, J] are global.
    Every rank of the tensor-parallel group must call it, and gets the same answer.
    """
    columns = model.columns
    parts = [
        _score_chunk(model.logits(rows[part]), columns, k, temperature, vocab, None if ids is None else ids[part])
        for part in row_chunks(rows, columns)
    ]
    if not parts:
        parts = [_score_chunk(model.logits(rows), columns, k, temperature, vocab, ids)]
    return RowScores(
        lse=torch.cat([p.lse for p in parts]),
        top_ids=torch.cat([p.top_ids for p in parts]),
        top_logprobs=torch.cat([p.top_logprobs for p in parts]),
        at_ids=None if ids is None else torch.cat([p.at_ids for p in parts if p.at_ids is not None]),
    )


@torch.no_grad()
def logprobs_at(model: PackedGPT, rows: torch.Tensor, ids: torch.Tensor, *, temperature: float, vocab: int) -> torch.Tensor:
    """Log-probs [N, J] of ids [N, J] at rows [N, hidden]; otherwise as score_rows, without the top-K."""
    columns = model.columns
    out = torch.empty(ids.shape, dtype=torch.float32, device=rows.device)
    for part in row_chunks(rows, columns):
        logits = _scaled(model.logits(rows[part]), columns, temperature, vocab)
        out[part] = _gather(logits, ids[part], columns) - _logsumexp(logits, columns)[:, None]
    return out


def _score_chunk(
    logits: torch.Tensor, columns: VocabColumns, k: int, temperature: float, vocab: int, ids: torch.Tensor | None
) -> RowScores:
    scaled = _scaled(logits, columns, temperature, vocab)
    lse = _logsumexp(scaled, columns)
    values, top = _top(scaled, columns, min(k, vocab))
    at_ids = None if ids is None else _gather(scaled, ids, columns) - lse[:, None]
    return RowScores(lse, top, values - lse[:, None], at_ids)


def _scaled(logits: torch.Tensor, columns: VocabColumns, temperature: float, vocab: int) -> torch.Tensor:
    """Real columns of this rank [N, C] in float32, at the temperature (C may be 0 on the last ranks)."""
    real = max(0, min(columns.size, min(vocab, columns.real) - columns.start))
    return logits[:, :real].float() / temperature


def _logsumexp(logits: torch.Tensor, columns: VocabColumns) -> torch.Tensor:
    local = torch.logsumexp(logits, dim=-1) if logits.shape[1] else logits.new_full((logits.shape[0],), -torch.inf)
    if columns.group is None:
        return local
    gathered = _all_gather(local, columns)
    return torch.logsumexp(gathered, dim=0)


def _gather(logits: torch.Tensor, ids: torch.Tensor, columns: VocabColumns) -> torch.Tensor:
    """Values [N, J] at global ids; each id lives on one rank."""
    local = ids - columns.start
    mine = (local >= 0) & (local < logits.shape[1])
    if logits.shape[1] == 0:
        values = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)
    else:
        values = torch.where(mine, logits.gather(1, local.clamp(0, logits.shape[1] - 1)), 0.0)
    if columns.group is not None:
        dist.all_reduce(values, group=columns.group)
    return values


def _top(logits: torch.Tensor, columns: VocabColumns, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The K largest values and their global ids, ties to the lower id."""
    count = min(k, logits.shape[1])
    offset = torch.arange(columns.start, columns.start + logits.shape[1], device=logits.device)
    values, ids = _top_by_key(logits, offset.expand_as(logits), count)
    if columns.group is None:
        return values, ids
    if count < k:
        values = torch.nn.functional.pad(values, (0, k - count), value=-torch.inf)
        ids = torch.nn.functional.pad(ids, (0, k - count), value=2**31 - 1)
    all_values = torch.cat(list(_all_gather(values, columns)), dim=1)
    all_ids = torch.cat(list(_all_gather(ids, columns)), dim=1)
    return _top_by_key(all_values, all_ids, k)


def _top_by_key(values: torch.Tensor, ids: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """topk over (value, -id): float32 bits made monotone in the upper half of an int64, the id counted down below."""
    bits = (values + 0.0).view(torch.int32)
    key = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32) + (2**31 - 1 - ids)
    order = key.topk(k, dim=1).indices
    return values.gather(1, order), ids.gather(1, order)


def _all_gather(tensor: torch.Tensor, columns: VocabColumns) -> torch.Tensor:
    parts = [torch.empty_like(tensor) for _ in range(columns.group.size())]
    dist.all_gather(parts, tensor.contiguous(), group=columns.group)
    return torch.stack(parts)
