"""The objective of docs/method.md from the current policy's logits: the hot path of training."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from openclaw_core.config.schema import Loss
from openclaw_core.loss.attach import attach
from openclaw_core.loss.divergence import DIVERGENCES
from openclaw_core.loss.fused import FusedRows, fusable
from openclaw_core.loss.health import raise_on_bad_rows
from openclaw_core.loss.logprobs import gather_logprobs, gather_with_entropy
from openclaw_core.loss.metrics import Metrics, measure
from openclaw_core.loss.rows import Rows
from openclaw_core.loss.surrogate import LOG_RATIO_BOUND, surrogate
from openclaw_core.loss.targets import Targets
from openclaw_core.loss.tensors import with_rest
from openclaw_core.loss.terms import Terms
from openclaw_core.vocab import VocabShard


@dataclass(frozen=True)
class Objective:
    """loss: scalar, the sum over samples (the caller divides by the samples of the whole batch). metrics: sums to add up.

    sample_losses holds "total", and "grpo" and "opd" where computed, as masked means per sample [B] (no gradient).
    bad [N] marks rows whose current log-probs are not finite; they add 0 to loss and gradient.
    """

    loss: Tensor
    metrics: Metrics
    sample_losses: dict[str, Tensor]
    bad: Tensor

    def check(self, rows: Rows) -> None:
        """Findings that name the bad rows; call before the optimizer step. Synchronises with the device once."""
        raise_on_bad_rows(
            rows,
            self.bad,
            "the current policy's logits hold NaN or Inf, or give the sampled id probability 0",
            "nothing was learned from this batch; lower optimizer.lr or go back to the last checkpoint.",
        )


def objective(logits: Tensor, rows: Rows, targets: Targets, cfg: Loss, shard: VocabShard, *, inplace: bool = True) -> Objective:
    """Loss and metrics of N rows from logits [N, V_local]; one reading of logits, one more in the backward pass.

    With inplace the backward pass writes the gradient into the storage of logits (see gather_logprobs). On a GPU that
    holds all of the vocabulary one kernel does both readings, and the gradient replaces the logits at once.
    """
    writable = inplace and logits.requires_grad and torch.is_grad_enabled()
    if writable and in_kernel(cfg) and fusable(logits, rows, targets, shard):
        fused = FusedRows.empty(targets)
        fused.write(slice(None), logits.detach(), rows, targets, cfg, shard)
        out = objective_of_fused(fused, rows, targets, cfg)
        return replace(out, loss=attach(out.loss, (logits,), (logits.detach(),)))
    if cfg.entropy_coef:
        logprobs, entropy = gather_with_entropy(logits, targets.gather_ids, shard, temperature=cfg.temperature, inplace=inplace)
    else:
        logprobs = gather_logprobs(logits, targets.gather_ids, shard, temperature=cfg.temperature, inplace=inplace)
        entropy = None
    return objective_of_logprobs(logprobs, entropy, rows, targets, cfg)


def objective_of_logprobs(logprobs: Tensor, entropy: Tensor | None, rows: Rows, targets: Targets, cfg: Loss) -> Objective:
    """The same from log-probs [N, S + 1] at targets.gather_ids and, with entropy_coef, the entropy [N]."""
    sampled = logprobs[:, -1]
    trained = rows.weight > 0
    good = trained & torch.isfinite(sampled.detach())
    terms = _terms(logprobs[:, :-1], sampled, good, rows, targets, cfg)
    parts = [cfg.w_rl * terms.grpo.loss] if terms.grpo else []
    if terms.opd:
        parts.append(cfg.w_opd * terms.opd.loss.sum(1))
    if entropy is not None:
        parts.append(-cfg.entropy_coef * torch.where(good, entropy, 0.0))
    if terms.kl is not None:
        parts.append(cfg.kl_coef * terms.kl)
    # Without any term the loss still belongs to the graph, so that every rank runs the same backward pass.
    per_row = sum(parts, start=torch.where(good, sampled, 0.0) * 0)
    assert isinstance(per_row, Tensor)
    return _summed(terms, per_row, entropy, good, rows, targets, cfg)


def in_kernel(cfg: Loss) -> bool:
    """Whether the fused kernel knows all terms of cfg; the plain path does."""
    return cfg.w_opd == 0 or DIVERGENCES.get(cfg.divergence).surrogate


@torch.no_grad()
def objective_of_fused(fused: FusedRows, rows: Rows, targets: Targets, cfg: Loss) -> Objective:
    """The same from what the fused kernel wrote; loss has no graph."""
    assert in_kernel(cfg), f"the fused kernel doesn't know the divergence {cfg.divergence}"
    return _summed(fused.terms(cfg), fused.total, fused.entropy(cfg), fused.good, rows, targets, cfg)


def _summed(
    terms: Terms, per_row: Tensor, entropy: Tensor | None, good: Tensor, rows: Rows, targets: Targets, cfg: Loss
) -> Objective:
    loss = (rows.weight * per_row).sum()
    with torch.no_grad():
        metrics = measure(terms, per_row, entropy, rows, targets, cfg)
        sample_losses = _sample_losses(terms, per_row, rows)
    return Objective(loss, metrics, sample_losses, (rows.weight > 0) & ~good)


def _sample_losses(terms: Terms, per_row: Tensor, rows: Rows) -> dict[str, Tensor]:
    parts = {"total": per_row}
    if terms.grpo is not None:
        parts["grpo"] = terms.grpo.loss
    if terms.opd is not None:
        parts["opd"] = terms.opd.loss.sum(1)
    zeros = per_row.new_zeros(len(rows.sample_ids))
    return {name: zeros.index_add(0, rows.sample_of_row, rows.weight * part) for name, part in parts.items()}


def _terms(support: Tensor, sampled: Tensor, good: Tensor, rows: Rows, targets: Targets, cfg: Loss) -> Terms:
    grpo = surrogate(sampled, targets.old_logprobs, rows.advantages, good, cfg) if cfg.w_rl > 0 else None
    opd = None
    if targets.opd is not None:
        live = targets.opd.mask & good[:, None]
        if cfg.tail == "bin":
            support = with_rest(support, live[:, :-1])
        opd = DIVERGENCES.get(cfg.divergence).term(support, targets.opd, live, cfg)
    kl = None
    if cfg.kl_coef:
        assert targets.reference_logprobs is not None, "kl_coef needs reference log-probs"
        kl = _kl(sampled, targets.old_logprobs, targets.reference_logprobs, good)
    return Terms(grpo, opd, kl)


def _kl(sampled: Tensor, old: Tensor, reference: Tensor, good: Tensor) -> Tensor:
    """rho (e^x - x - 1), x = ell_ref - ell_cur, at the sampled id [N].

    Its mean over ids sampled from old is KL(cur, ref), and so is its gradient's, at any cur; without rho the gradient
    would be another divergence's.
    """
    sampled, old, reference = (torch.where(good, x, 0.0) for x in (sampled, old, reference))

    def bounded(x: Tensor) -> Tensor:
        return x.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)

    # rho e^x is exp(ell_ref - ell_old), a constant: written so, no large terms have to cancel in the gradient -rho x.
    return bounded(reference - old).exp() - bounded(sampled - old).exp() * (bounded(reference - sampled) + 1)
