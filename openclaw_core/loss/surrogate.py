"""The clipped policy-gradient surrogate of both terms (docs/method.md, Objective)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_core.config.schema import Loss

LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True)
class Surrogate:
    """loss, ratio: as the inputs; clipped (bool): where the clipped branch decides, so that no gradient flows."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def surrogate(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, live: Tensor, cfg: Loss) -> Surrogate:
    """max(-A rho, -A clip(rho, 1 - eps_clip, 1 + eps_clip_high)), rho = exp(clip(ell_cur - ell_old, -20, 20)).

    With dual_clip b the loss is at most -A b where A < 0. All tensors have one shape; where live is False the loss
    is 0 and no gradient flows, whatever the inputs hold.
    """
    # Twice where: a NaN must neither enter the value nor come back through the gradient of the branch not taken.
    log_ratio = torch.where(live, logprobs, 0.0) - torch.where(live, old_logprobs, 0.0)
    ratio = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    advantages = torch.where(live, advantages, 0.0)
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - cfg.eps_clip, 1 + cfg.eps_clip_high)
    loss = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if cfg.dual_clip is not None:
        bound = torch.where(advantages < 0, -advantages * cfg.dual_clip, float("inf"))
        clipped = clipped | (loss > bound)
        loss = torch.minimum(loss, bound)
    return Surrogate(loss, ratio, clipped.detach())
