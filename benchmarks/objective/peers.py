"""Other ways to the same work: torch.compile of the formula, and Liger's kernels where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.objective.problem import Problem
from openclaw_core.loss.objective import objective_of_logprobs
from openclaw_core.loss.surrogate import surrogate


def compiled_loss(problem: Problem) -> Callable[[Tensor], Tensor]:
    """The objective as one would write it down, log-softmax and gather, for torch.compile to fuse."""
    rows, targets, cfg = problem.rows, problem.targets, problem.cfg

    def formula(logits: Tensor) -> Tensor:
        logprobs = torch.log_softmax(logits.float(), -1).gather(1, targets.gather_ids.clamp(min=0))
        live = rows.weight > 0
        total = cfg.w_rl * surrogate(logprobs[:, -1], targets.old_logprobs, rows.advantages, live, cfg).loss
        if targets.opd is not None:
            opd = targets.opd
            total = total + cfg.w_opd * surrogate(logprobs[:, :-1], opd.old_logprobs, opd.advantages, opd.mask, cfg).loss.sum(1)
        return (rows.weight * total).sum()

    compiled: Callable[[Tensor], Tensor] = torch.compile(formula, dynamic=False)
    return compiled


def plain_loss(problem: Problem) -> Callable[[Tensor], Tensor]:
    """The same without a compiler."""

    def formula(logits: Tensor) -> Tensor:
        logprobs = torch.log_softmax(logits.float(), -1).gather(1, problem.targets.gather_ids.clamp(min=0))
        return objective_of_logprobs(logprobs, None, problem.rows, problem.targets, problem.cfg).loss

    return formula


def liger_installed() -> bool:
    """Whether liger-kernel can be imported."""
    return importlib.util.find_spec("liger_kernel") is not None


def liger_grpo(problem: Problem) -> Callable[[Tensor], Tensor]:
    """Liger's GRPO loss from logits, gradient in place: the GRPO term alone, averaged over tokens.

    It leaves out the logits of each sample's last position, so it works on one row a sample less.
    """
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss

    rows, length = problem.rows, problem.rows.lengths[0]
    samples = len(rows.lengths)
    ids = rows.response_ids.view(samples, length)[:, :-1].contiguous()
    old = problem.targets.old_logprobs.view(samples, length)[:, :-1].contiguous()
    advantages = rows.advantages.view(samples, length)[:, 0].contiguous()

    def run(logits: Tensor) -> Tensor:
        told: Any = triton_grpo_loss(
            logits.view(samples, length, -1), old, None, ids, advantages,
            temperature=1.0, beta=0.0, eps_low=0.2, eps_high=0.28, inplace=True,
        )  # fmt: skip
        loss: Tensor = told[0] if isinstance(told, tuple) else told
        return loss.mean()

    return run


def liger_linear(ids: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Liger's output layer and cross entropy in one: a simpler loss over the same matmuls."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    layer = LigerFusedLinearCrossEntropyLoss()

    def run(hidden: Tensor, weight: Tensor) -> Tensor:
        loss: Tensor = layer(weight, hidden, ids)
        return loss

    return run
