"""The published implementation's passes over the vocabulary, written again in plain torch; one tensor-parallel rank.

Per sample and in this order, all in float32: a cross entropy that keeps its softmax for the backward pass, an entropy that
keeps another one (computed also where its coefficient is 0), and log-probs at the support's ids through exp and sum. The
gather is the right one (log-prob without the row's largest logit); its passes are the same. The old pass takes the
log-softmax of all logits, then its top-K, gathers and entropy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.objective.problem import Problem
from openclaw_core.loss.objective import objective_of_logprobs


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor) -> Tensor:
        z = logits.float()
        z = z - z.amax(-1, keepdim=True)
        picked = z.gather(1, ids[:, None])[:, 0]
        e = z.exp_()
        total = e.sum(-1)
        softmax = e.div_(total[:, None])
        ctx.save_for_backward(softmax, ids)
        ctx.dtype = logits.dtype
        return picked - total.log()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        softmax, ids = ctx.saved_tensors
        softmax.scatter_add_(1, ids[:, None], -torch.ones_like(grad)[:, None])
        return softmax.mul_(-grad[:, None]).to(ctx.dtype), None


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        z = logits.float()
        largest = z.amax(-1, keepdim=True)
        e = (z - largest).exp_()
        total = e.sum(-1, keepdim=True)
        softmax = e.div_(total)
        mean = (softmax * z).sum(-1, keepdim=True)
        ctx.save_for_backward(z, softmax, mean)
        ctx.dtype = logits.dtype
        return (largest + total.log() - mean)[:, 0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        z, softmax, mean = ctx.saved_tensors
        return softmax.mul_(z - mean).mul_(-grad[:, None]).to(ctx.dtype)


def _at_ids(logits: Tensor, ids: Tensor) -> Tensor:
    z = logits.float()
    z = z - z.detach().amax(-1, keepdim=True)
    return z.gather(1, ids.clamp(min=0)) - z.exp().sum(-1, keepdim=True).log()


def _places(problem: Problem) -> list[Tensor] | list[None]:
    opd = problem.targets.opd
    return [None] * len(problem.rows.lengths) if opd is None else problem.rows.split(opd.ids)


def loss(problem: Problem, logits: Tensor) -> Tensor:
    """The scalar loss of problem at logits [N, V]."""
    sampled, support, entropy = [], [], []
    rows, targets = problem.rows, problem.targets
    # One split, whose backward pass is one concatenation: a slice per sample would add up whole gradients instead.
    for z, ids, places in zip(rows.split(logits), rows.split(rows.response_ids), _places(problem), strict=True):
        sampled.append(_CrossEntropy.apply(z, ids))
        entropy.append(_Entropy.apply(z))
        if places is not None:
            support.append(_at_ids(z, places))
    columns = [torch.cat(sampled)[:, None]]
    if support:
        columns.insert(0, torch.cat(support))
    out = objective_of_logprobs(torch.cat(columns, dim=1), None, rows, targets, problem.cfg)
    return out.loss - problem.cfg.entropy_coef * (rows.weight * torch.cat(entropy)).sum()


@torch.no_grad()
def old_pass(logits: Tensor, sampled_ids: Tensor, gather_ids: Tensor, k: int) -> tuple[Tensor, ...]:
    """Log-probs at sampled_ids [N] and gather_ids [N, J], entropy, and the top-k with its ids."""
    logprobs = torch.log_softmax(logits.float(), -1)
    values, ids = logprobs.topk(k, dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, sampled_ids[:, None]), logprobs.gather(1, gather_ids), entropy, values, ids
