"""Log-probabilities from logits [N, V_local], dense or vocabulary-parallel, without a second [N, V_local] tensor.

ell(v) = z_v / T - log sum_u exp(z_u / T) over the real vocabulary (docs/method.md). Work goes over the rows in chunks,
in float32 (float64 for float64 logits). Between ranks only O(N) and O(N x ids) travel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from openclaw_core.loss import kernels
from openclaw_core.loss.topk import local_topk, merge
from openclaw_core.vocab import VocabShard

# Elements of a chunk: a CPU chunk stays in cache, a CUDA chunk of float32 takes 16 MiB.
CHUNK = {"cpu": 1 << 18, "cuda": 1 << 22}
# Stands for log 0 where it is multiplied by the probability 0; far enough from the least float32 to be multiplied first.
LEAST_LOGPROB = -1e30
# Ids a row that the gradient kernel takes: it compares all pairs of them.
MOST_IDS = 128


@dataclass(frozen=True)
class RowStats:
    """What one pass over the logits of N rows gives; float32 (float64 for float64 logits), no gradient.

    lse and entropy [N] at the scoring temperature; sampled_logprobs [N]; top_ids and top_logprobs [N, K] by falling
    log-prob, ties to the lower id, K cut to the real vocabulary; gathered [N, J] at gather_ids (-inf for ids < 0).
    sampling_logprobs [N] are the sampled ids' at the sampling temperature, what an engine would report.
    """

    lse: Tensor
    entropy: Tensor
    sampled_logprobs: Tensor
    sampling_logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    gathered: Tensor | None
    real_vocab: int


@torch.no_grad()
def row_stats(
    logits: Tensor,
    shard: VocabShard,
    *,
    sampled_ids: Tensor,
    temperature: float = 1.0,
    k: int = 0,
    gather_ids: Tensor | None = None,
    sampling_temperature: float | None = None,
) -> RowStats:
    """Log-sum-exp, entropy, log-probs of sampled_ids [N] and gather_ids [N, J], and the top-k of logits [N, V_local].

    Every rank of shard.group calls it with the same ids and gets the same result.
    """
    k = min(k, shard.real_vocab)
    at_sampling = temperature if sampling_temperature is None else sampling_temperature
    real = logits[:, : shard.real]
    sums, values, columns = _scan(real, temperature, at_sampling, min(k, shard.real))
    ids = sampled_ids[:, None] if gather_ids is None else torch.cat((sampled_ids[:, None], gather_ids), dim=1)
    picked = sums.reduce(_pick(real, ids, shard), shard)
    norm = sums.norm()
    logprobs = norm.logprobs(picked).masked_fill(ids < 0, float("-inf"))
    top_values, top_ids = merge(values, columns + shard.start, k, shard)
    return RowStats(
        lse=norm.shift / temperature + norm.log_sum,
        entropy=sums.entropy(),
        sampled_logprobs=logprobs[:, 0],
        sampling_logprobs=(picked[:, 0] - norm.shift) / at_sampling - sums.at_sampling.log(),
        top_ids=top_ids,
        top_logprobs=norm.logprobs(top_values),
        gathered=None if gather_ids is None else logprobs[:, 1:],
        real_vocab=shard.real_vocab,
    )


def gather_logprobs(logits: Tensor, ids: Tensor, shard: VocabShard, *, temperature: float = 1.0, inplace: bool = True) -> Tensor:
    """Log-probs [N, J] of ids [N, J] under logits [N, V_local]; differentiable. Ids < 0 give -inf and no gradient.

    With inplace the backward pass writes the gradient into the storage of logits, whose values are then gone; autograd
    raises if another operation still needs them. Turn it off to differentiate twice or to read logits afterwards.
    Every rank of shard.group gets all J log-probs and must use them alike: the gradient is not summed over ranks.
    """
    logprobs, _ = _Gather.apply(logits, ids, shard, temperature, False, inplace)
    return logprobs


def gather_with_entropy(
    logits: Tensor, ids: Tensor, shard: VocabShard, *, temperature: float = 1.0, inplace: bool = True
) -> tuple[Tensor, Tensor]:
    """gather_logprobs and the entropy [N] of each row, both differentiable, from the same two readings of logits."""
    logprobs, entropy = _Gather.apply(logits, ids, shard, temperature, True, inplace)
    return logprobs, entropy


def _chunks(x: Tensor) -> Iterator[slice]:
    step = max(1, CHUNK.get(x.device.type, CHUNK["cuda"]) // max(1, x.shape[1]))
    # An empty tensor still gets one (empty) chunk, so that results can be concatenated.
    for start in range(0, max(1, x.shape[0]), step):
        yield slice(start, start + step)


def _scan(real: Tensor, temperature: float, at_sampling: float, k: int) -> tuple[_Sums, Tensor, Tensor]:
    """This rank's sums, and values and columns [N, k] of its top-k."""
    if k and kernels.usable(real):
        from openclaw_core.loss.kernels.topk import sums_and_topk

        (shift, e, e_log_e, second), values, columns = sums_and_topk(real, temperature, at_sampling, k)
        return _Sums(shift, e, e_log_e, second, temperature, at_sampling), values, columns
    sums = _Sums.of(real, temperature, at_sampling, with_entropy=True)
    tops = [local_topk(real[rows], k) for rows in _chunks(real)]
    values = torch.cat([value for value, _ in tops]).to(sums.shift.dtype)
    return sums, values, torch.cat([column for _, column in tops])


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _pick(real: Tensor, ids: Tensor, shard: VocabShard) -> Tensor:
    """This rank's share of the logits at ids [N, J]: 0 where another rank holds the id."""
    if shard.real == 0:
        return torch.zeros(ids.shape, dtype=_compute_dtype(real), device=real.device)
    column, own = shard.local(ids)
    return real.gather(1, column).to(_compute_dtype(real)).masked_fill(~own, 0)


@dataclass(frozen=True)
class _Norm:
    """ell(v) = (z_v - shift) / temperature - log_sum: exact at large logits, where z_v / T - lse is not."""

    shift: Tensor
    log_sum: Tensor
    temperature: float

    def logprobs(self, z: Tensor) -> Tensor:
        return (z - self.shift[:, None]) / self.temperature - self.log_sum[:, None]


@dataclass
class _Sums:
    """Sums over the vocabulary with e_v = exp((z_v - shift) / T), each [N]: of e and, when asked for, of e log e and of e at
    the sampling temperature (0 and the same as e otherwise).
    """

    shift: Tensor
    e: Tensor
    e_log_e: Tensor
    at_sampling: Tensor
    temperature: float
    sampling_temperature: float

    @classmethod
    def of(cls, real: Tensor, temperature: float, sampling_temperature: float, with_entropy: bool) -> _Sums:
        """This rank's sums around its own largest logit."""
        if kernels.usable(real):
            from openclaw_core.loss.kernels.stats import sums

            shift, e, e_log_e, second = sums(real, temperature, sampling_temperature, with_entropy)
            return cls(shift, e, e_log_e, second, temperature, sampling_temperature)
        parts = [_chunk_sums(real[rows], temperature, sampling_temperature, with_entropy) for rows in _chunks(real)]
        shift, e, e_log_e, at_sampling = (torch.cat(column) for column in zip(*parts, strict=True))
        return cls(shift, e, e_log_e, at_sampling, temperature, sampling_temperature)

    def reduce(self, picked: Tensor, shard: VocabShard) -> Tensor:
        """Move the sums to all ranks' largest logit and add them up; picked [N, J] rides along."""
        if shard.group is None:
            return picked
        largest = shard.max(self.shift.masked_fill(self.e == 0, float("-inf")))
        largest = largest.masked_fill(largest == float("-inf"), 0)
        # A rank without a finite logit has no shift of its own.
        gap = (self.shift - largest).masked_fill(self.e == 0, 0)
        scored, sampled = gap / self.temperature, gap / self.sampling_temperature
        moved = scored.exp()
        sums = (self.e * moved, moved * (self.e_log_e + scored * self.e), self.at_sampling * sampled.exp())
        buffer = shard.sum(torch.cat((torch.stack(sums, dim=1), picked), dim=1))
        self.shift, self.e, self.e_log_e, self.at_sampling = largest, buffer[:, 0], buffer[:, 1], buffer[:, 2]
        return buffer[:, 3:]

    def norm(self) -> _Norm:
        return _Norm(self.shift, self.e.log(), self.temperature)

    def entropy(self) -> Tensor:
        return self.e.log() - self.e_log_e / self.e


def _chunk_sums(z: Tensor, temperature: float, sampling_temperature: float, with_entropy: bool) -> tuple[Tensor, ...]:
    dtype = _compute_dtype(z)
    zeros = torch.zeros(z.shape[0], dtype=dtype, device=z.device)
    if z.shape[1] == 0:
        return zeros, zeros, zeros, zeros
    shift = z.amax(1).to(dtype)
    shift = shift.masked_fill(shift == float("-inf"), 0)
    gap = torch.sub(z, shift[:, None])
    at_sampling = None if sampling_temperature == temperature else (gap / sampling_temperature).exp_().sum(1)
    log_e = gap if temperature == 1 else gap.div_(temperature)
    e = log_e.exp() if with_entropy else log_e.exp_()
    total = e.sum(1)
    # e = 0 must add 0 to the sum of e log e, also where log e = -inf.
    e_log_e = e.mul_(log_e.clamp_(min=torch.finfo(dtype).min)).sum(1) if with_entropy else zeros
    return shift, total, e_log_e, total if at_sampling is None else at_sampling


class _Gather(torch.autograd.Function):
    """Log-probs at ids and, when asked, the entropy. Saves the logits themselves and O(N x J)."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, ids: Tensor, shard: VocabShard, temperature: float, with_entropy: bool, inplace: bool
    ) -> tuple[Tensor, Tensor]:
        real = logits[:, : shard.real]
        sums = _Sums.of(real, temperature, temperature, with_entropy)
        picked = sums.reduce(_pick(real, ids, shard), shard)
        norm = sums.norm()
        entropy = sums.entropy() if with_entropy else norm.shift.new_empty(0)
        ctx.save_for_backward(logits, ids, norm.shift, norm.log_sum, entropy)
        ctx.shard, ctx.temperature, ctx.with_entropy, ctx.inplace = shard, temperature, with_entropy, inplace
        return norm.logprobs(picked).masked_fill(ids < 0, float("-inf")), entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, ids, shift, log_sum, entropy = ctx.saved_tensors
        column, own = ctx.shard.local(ids)
        grad_ids = grads[0] / ctx.temperature
        spread = -grad_ids.sum(1)
        grad_ids = grad_ids.masked_fill(~own, 0)
        grad_entropy = grads[1] / ctx.temperature if ctx.with_entropy else None
        # A row without a finite sum has no gradient; objective.py reports it by name.
        broken = ~torch.isfinite(log_sum)
        # Looking is free on a CPU and would wait for a GPU.
        mend = broken.device.type != "cpu" or bool(broken.any())
        out = logits.detach() if ctx.inplace else torch.empty_like(logits)
        width = ctx.shard.real
        if ids.shape[1] <= MOST_IDS and kernels.usable(logits):
            from openclaw_core.loss.kernels.gradient import RowTerms, write_gradient

            terms = RowTerms(shift, log_sum, spread, entropy if ctx.with_entropy else None, grad_entropy, broken)
            write_gradient(logits.detach(), out, width, column, own, grad_ids, terms, ctx.temperature)
            if ctx.inplace:
                increment_version(logits)
            return out, None, None, None, None, None
        for rows in _chunks(logits):
            z, target = logits[rows, :width], out[rows, :width]
            reuse = ctx.inplace and z.dtype == shift.dtype
            work = target.sub_(shift[rows, None]) if reuse else torch.sub(z, shift[rows, None])
            if ctx.temperature != 1:
                work.div_(ctx.temperature)
            work.sub_(log_sum[rows, None])
            if grad_entropy is None:
                work.exp_().mul_(spread[rows, None])
            else:
                # dH/dz_v = -p_v (log p_v + H)
                inner = work.clamp(min=LEAST_LOGPROB).add_(entropy[rows, None]).mul_(-grad_entropy[rows, None])
                work.exp_().mul_(inner.add_(spread[rows, None]))
            if width:
                work.scatter_add_(1, column[rows], grad_ids[rows])
            if mend:
                work.masked_fill_(broken[rows, None], 0)
            if not reuse:
                target.copy_(work)
        out[:, width:] = 0
        return out, None, None, None, None, None
