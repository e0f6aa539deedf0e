"""Output layer and objective together, chunk by chunk of rows: the logits [N, V] never exist at once.

The gradient needs each chunk's logits only while that chunk is worked on, so it is computed in the forward pass: logits =
h W^T, loss and gradient in their place, then this chunk's rows of d h and its part of d W. The backward pass only hands
out what is there. Three matmuls of N x V x H, as the unfused layer has, and one chunk of logits.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from openclaw_core.config.schema import Loss
from openclaw_core.loss.attach import attach
from openclaw_core.loss.fused import FusedRows, fusable
from openclaw_core.loss.objective import Objective, in_kernel, objective, objective_of_fused
from openclaw_core.loss.rows import Rows
from openclaw_core.loss.targets import Targets
from openclaw_core.vocab import VocabShard

# Bytes of a chunk's logits: large enough for full-speed matmuls, few enough chunks to add up d W, under 1 GiB.
CHUNK_BYTES = 896 << 20
# Rows of a chunk are a multiple of this where there are as many: whole tiles of the matmuls.
ROWS_MULTIPLE = 256


def linear_objective(
    hidden: Tensor,
    weight: Tensor,
    rows: Rows,
    targets: Targets,
    cfg: Loss,
    shard: VocabShard,
    *,
    chunk_rows: int | None = None,
    weight_grad_dtype: torch.dtype | None = None,
) -> Objective:
    """objective(hidden [N, H] @ weight [V_local, H]^T, ...), differentiable in hidden and weight.

    d weight is added up over the chunks in weight_grad_dtype, weight's own unless given: float32 keeps the digits that
    bfloat16 loses over many chunks, for twice the memory. With a group the gradient of hidden is this rank's part; the
    caller sums it over the ranks, as after any column-parallel layer.
    """
    count, vocab = hidden.shape[0], weight.shape[0]
    step = chunk_rows or _chunk_rows(vocab, hidden.element_size())
    grads = torch.is_grad_enabled()
    d_hidden = torch.empty_like(hidden, requires_grad=False) if grads and hidden.requires_grad else None
    d_weight = None
    if grads and weight.requires_grad:
        d_weight = torch.zeros(weight.shape, dtype=weight_grad_dtype or weight.dtype, device=weight.device)
    buffer = hidden.new_empty(min(step, count), vocab)
    with torch.no_grad():
        fused = FusedRows.empty(targets) if in_kernel(cfg) and fusable(buffer, rows, targets, shard) else None
        outs: list[Objective] = []
        # One chunk, if empty, where there are no rows, so that there is a loss.
        for start in range(0, max(1, count), step):
            part = slice(start, start + step)
            chunk = hidden[part]
            logits = torch.mm(chunk, weight.t(), out=buffer[: chunk.shape[0]])
            if fused is not None:
                fused.write(part, logits, rows.take(part), targets.take(part), cfg, shard)
            else:
                outs.append(_write_gradient(logits, rows.take(part), targets.take(part), cfg, shard, d_hidden, d_weight))
            if d_hidden is not None:
                torch.mm(logits, weight, out=d_hidden[part])
            if d_weight is not None:
                _add_product(d_weight, logits, chunk)
        out = _total(outs) if fused is None else objective_of_fused(fused, rows, targets, cfg)
    inputs = [x for x, grad in ((hidden, d_hidden), (weight, d_weight)) if grad is not None]
    found = [grad for grad in (d_hidden, None if d_weight is None else d_weight.to(weight.dtype)) if grad is not None]
    return replace(out, loss=attach(out.loss, tuple(inputs), tuple(found))) if inputs else out


def _chunk_rows(vocab: int, size: int) -> int:
    rows = CHUNK_BYTES // (vocab * size)
    return max(1, rows // ROWS_MULTIPLE * ROWS_MULTIPLE or rows)


def _write_gradient(
    logits: Tensor, rows: Rows, targets: Targets, cfg: Loss, shard: VocabShard, d_hidden: Tensor | None, d_weight: Tensor | None
) -> Objective:
    if d_hidden is None and d_weight is None:
        return objective(logits, rows, targets, cfg, shard)
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_(True)
        out = objective(leaf, rows, targets, cfg, shard)
        (grad,) = torch.autograd.grad(out.loss, leaf)
    assert grad.data_ptr() == logits.data_ptr(), "the gradient belongs where the logits were"
    return replace(out, loss=out.loss.detach())


def _add_product(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """total += grad^T @ hidden."""
    if total.dtype == grad.dtype:
        total.addmm_(grad.t(), hidden)
    elif total.is_cuda:
        torch.addmm(total, grad.t(), hidden, out_dtype=total.dtype, out=total)
    else:
        total.add_(grad.t().to(total.dtype) @ hidden.to(total.dtype))


def _total(outs: list[Objective]) -> Objective:
    first, *others = outs
    loss, metrics, samples = first.loss, first.metrics, dict(first.sample_losses)
    for out in others:
        loss, metrics = loss + out.loss, metrics + out.metrics
        samples = {name: value + out.sample_losses[name] for name, value in samples.items()}
    return Objective(loss, metrics, samples, torch.cat([out.bad for out in outs]))
