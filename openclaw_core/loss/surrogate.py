"""The clipped policy-gradient surrogate of both terms (docs/method.md, Objective)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_core.config.schema import Loss

LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True)
class Surrogate:
    """loss, ratio: as the inputs; clipped (bool): where the clipped branch decides, so that no gradient flows.

    clipped is None where nothing is ever clipped.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor | None


def surrogate(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, live: Tensor, cfg: Loss) -> Surrogate:
    """max(-A rho, -A clip(rho, 1 - eps_clip, 1 + eps_clip_high)), rho = exp(clip(ell_cur - ell_old, -20, 20)).

    With dual_clip b the loss is at most -A b where A < 0. All tensors have one shape; where live is False the loss
    is 0 and no gradient flows, whatever the inputs hold.
    """
    rho = ratio(logprobs, old_logprobs, live)
    advantages = torch.where(live, advantages, 0.0)
    plain = -advantages * rho
    bounded = -advantages * rho.clamp(1 - cfg.eps_clip, 1 + cfg.eps_clip_high)
    loss = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if cfg.dual_clip is not None:
        bound = torch.where(advantages < 0, -advantages * cfg.dual_clip, float("inf"))
        clipped = clipped | (loss > bound)
        loss = torch.minimum(loss, bound)
    return Surrogate(loss, rho, clipped.detach())


def ratio(logprobs: Tensor, old_logprobs: Tensor, live: Tensor) -> Tensor:
    """rho = exp(clip(ell_cur - ell_old, -20, 20)); 1, without a gradient, where live is False."""
    # Twice where: a NaN must neither enter the value nor come back through the gradient of the branch not taken.
    log_ratio = torch.where(live, logprobs, 0.0) - torch.where(live, old_logprobs, 0.0)
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
