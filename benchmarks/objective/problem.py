"""Inputs of a size: random logits, and rows and targets as a step would have them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from openclaw_core.config.schema import Loss
from openclaw_core.loss.logprobs import row_stats
from openclaw_core.loss.needs import needs
from openclaw_core.loss.rows import Rows
from openclaw_core.loss.targets import Targets, build_targets
from openclaw_core.loss.teacher_rows import TeacherRows
from openclaw_core.vocab import VocabShard

SAMPLES = 16
CANDIDATES = 3


@dataclass(frozen=True)
class Problem:
    """logits [N, V] are the current policy's; a side that writes into them is given `fresh` before every run."""

    logits: Tensor
    scratch: Tensor
    rows: Rows
    targets: Targets
    cfg: Loss
    shard: VocabShard

    def fresh(self) -> None:
        """Put the logits into scratch again and forget its gradient."""
        self.scratch.grad = None
        with torch.no_grad():
            self.scratch.copy_(self.logits)


def random_logits(count: int, vocab: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[count, vocab], normal with deviation 3; filled in pieces, so that no float32 copy is made."""
    logits = torch.empty(count, vocab, device=device, dtype=dtype)
    for part in logits.split(1024):
        part.normal_(std=3.0)
    return logits


def problem(count: int, vocab: int, device: torch.device, dtype: torch.dtype, cfg: Loss) -> Problem:
    """N rows of SAMPLES samples with CANDIDATES candidates each; every row is trained."""
    logits = random_logits(count, vocab, device, dtype)
    shard = VocabShard.whole(vocab)
    rows = _rows(count, vocab, device)
    stats = row_stats(logits, shard, sampled_ids=rows.response_ids, temperature=cfg.temperature, k=cfg.k)

    def near(x: Tensor, gap: float) -> Tensor:
        return x + gap * torch.randn_like(x)

    # The old policy is a little away from the current one, the teachers further.
    stats = replace(stats, sampled_logprobs=near(stats.sampled_logprobs, 0.1), top_logprobs=near(stats.top_logprobs, 0.1))
    ids = stats.top_ids[:, None].repeat(1, CANDIDATES, 1)
    ids[..., ::2] = torch.randint(0, vocab, ids[..., ::2].shape, device=device)
    taught = near(stats.top_logprobs[:, None].repeat(1, CANDIDATES, 1), 0.5)
    teacher = TeacherRows(ids, taught, taught, torch.ones(count, CANDIDATES, dtype=torch.bool, device=device))
    if needs(cfg).old_at_teacher:
        asked = row_stats(
            logits, shard, sampled_ids=rows.response_ids, temperature=cfg.temperature, gather_ids=teacher.gather_ids()
        )
        stats = replace(stats, gathered=asked.gathered)
    targets = build_targets(cfg, rows, stats, teacher if cfg.w_opd > 0 else None)
    return Problem(logits, torch.empty_like(logits).requires_grad_(True), rows, targets, cfg, shard)


def _rows(count: int, vocab: int, device: torch.device) -> Rows:
    assert count % SAMPLES == 0, f"rows come in {SAMPLES} samples"
    length = count // SAMPLES
    sample = torch.arange(SAMPLES, device=device).repeat_interleave(length)
    return Rows(
        sample_ids=tuple(f"s{i}" for i in range(SAMPLES)),
        lengths=(length,) * SAMPLES,
        steps=SAMPLES,
        response_ids=torch.randint(0, vocab, (count,), device=device),
        weight=torch.full((count,), 1 / length, device=device),
        advantages=torch.where(sample % 2 == 0, 1.0, -1.0),
        engine_logprobs=torch.zeros(count, device=device),
        sample_of_row=sample,
        position_of_row=torch.arange(length, device=device).repeat(SAMPLES),
        step_of_row=sample,
        group_of_row=torch.zeros(count, dtype=torch.int64, device=device),
        real_candidates=torch.full((count,), CANDIDATES, device=device),
        opd=torch.ones(count, dtype=torch.bool, device=device),
    )
