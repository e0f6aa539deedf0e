"""Everything of the objective that doesn't depend on the current policy: built once a step, before the training forward."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_core.config.schema import Loss
from openclaw_core.loss.divergence import DIVERGENCES
from openclaw_core.loss.health import raise_on_bad_rows
from openclaw_core.loss.logprobs import RowStats
from openclaw_core.loss.needs import needs
from openclaw_core.loss.rows import Rows
from openclaw_core.loss.selection import RULES, Choice, select
from openclaw_core.loss.support import SUBSETS, Sides
from openclaw_core.loss.teacher_rows import TeacherRows
from openclaw_core.loss.tensors import find, map_tensors, masked_softmax, with_rest


@dataclass(frozen=True)
class OpdTargets:
    """The OPD term of N rows over B bins: the S places of support and, with tail: bin, the rest of the vocabulary last.

    ids [N, S], -1 where the place doesn't count; mask, weights (w_v), differences (d_v, clipped), advantages (A_v),
    old_logprobs, teacher_logprobs [N, B]; k_star [N]; overlap [N, M] is O[k, t], 0 for fillers; tied [N], or None where
    the rule doesn't compare. Rows without OPD have an empty mask; so has the tail of a support that is the whole vocabulary.
    """

    ids: Tensor
    mask: Tensor
    weights: Tensor
    differences: Tensor
    advantages: Tensor
    old_logprobs: Tensor
    teacher_logprobs: Tensor
    k_star: Tensor
    overlap: Tensor
    tied: Tensor | None


@dataclass(frozen=True)
class Targets:
    """gather_ids [N, S + 1] are the ids the training forward reads: opd.ids, then the sampled id.

    old_logprobs, sampling_logprobs, entropy [N] come from the old pass; reference_logprobs [N] from the starting
    student (None without kl_coef). opd is None without w_opd.
    """

    gather_ids: Tensor
    old_logprobs: Tensor
    sampling_logprobs: Tensor
    entropy: Tensor
    reference_logprobs: Tensor | None
    opd: OpdTargets | None

    def take(self, index: Tensor | slice) -> Targets:
        """The rows of index, for a rank that holds only some (context parallel)."""
        return map_tensors(self, lambda x: x[index])


def build_targets(
    cfg: Loss,
    rows: Rows,
    stats: RowStats,
    teacher: TeacherRows | None = None,
    reference_logprobs: Tensor | None = None,
) -> Targets:
    """Selection, support, weights and advantages of every row.

    stats is the old pass with k = needs(cfg).student_k and, where needs(cfg).old_at_teacher, gather_ids =
    teacher.gather_ids(). Findings name rows whose log-probs are not finite; this synchronises with the device.
    """
    opd = None
    if cfg.w_opd > 0:
        assert teacher is not None, "the OPD term needs teacher rows"
        opd = _opd_targets(cfg, rows, stats, teacher)
    # Only now: ranks that share the samples' rows have met in the selection, and one that raised would be missed there.
    broken = ~torch.isfinite(stats.lse) | ~torch.isfinite(stats.sampled_logprobs)
    raise_on_bad_rows(
        rows,
        broken & (rows.weight > 0),
        "the old policy's logits hold NaN or Inf, or give the sampled id probability 0",
        "check the student's weights and that the engine sampled from them.",
    )
    if reference_logprobs is not None and needs(cfg).reference:
        raise_on_bad_rows(
            rows,
            ~torch.isfinite(reference_logprobs) & (rows.weight > 0),
            "the reference's logits hold NaN or Inf, or give the sampled id probability 0",
            "check the starting student's weights.",
        )
    # Other divergences don't look at advantages.
    if opd is not None and DIVERGENCES.get(cfg.divergence).surrogate:
        raise_on_bad_rows(
            rows,
            ~torch.isfinite(opd.advantages).all(1) & (rows.weight > 0),
            "the teacher gives probability 0 to an id that the student can say",
            "set loss.diff_clip above 0 to bound the difference.",
        )
    sampled = rows.response_ids[:, None]
    return Targets(
        gather_ids=sampled if opd is None else torch.cat((opd.ids, sampled), dim=1),
        old_logprobs=stats.sampled_logprobs,
        sampling_logprobs=stats.sampling_logprobs,
        entropy=stats.entropy,
        reference_logprobs=reference_logprobs if needs(cfg).reference else None,
        opd=opd,
    )


def _opd_targets(cfg: Loss, rows: Rows, stats: RowStats, teacher: TeacherRows) -> OpdTargets:
    rule = RULES.get(cfg.selection)
    # An id of probability 0 is in no support.
    student_ids = stats.top_ids.masked_fill(stats.top_logprobs == float("-inf"), -1)
    overlap = find(student_ids[:, None].expand_as(teacher.ids), teacher.ids)[0].sum(-1)
    signal = _signal(student_ids, stats.top_logprobs, teacher) if rule.reads_signal else None
    selected = select(rule, Choice(overlap, teacher.real, signal, rows.step_of_row, rows.steps, rows.group))
    support = SUBSETS.get(cfg.subset).build(_sides(student_ids, stats, teacher, selected.k_star))
    # Where the student's probability is 0 the weight is 0 too, and w d has the limit 0.
    mask = support.mask & rows.opd[:, None] & (support.old_logprobs > float("-inf"))
    ids, old, told = support.ids.masked_fill(~mask, -1), support.old_logprobs, support.teacher_logprobs
    if cfg.tail == "bin":
        rest = rows.opd & (mask.sum(1) < stats.real_vocab)
        old, told = with_rest(old, mask), with_rest(told, mask)
        mask = torch.cat((mask, rest[:, None]), dim=1)
    clip = cfg.diff_clip if cfg.diff_clip > 0 else math.inf
    weights, differences = masked_softmax(old, mask), torch.where(mask, told - old, 0.0).clamp(-clip, clip)
    return OpdTargets(
        ids=ids,
        mask=mask,
        weights=weights,
        differences=differences,
        advantages=torch.where(weights > 0, differences * weights, 0.0),
        old_logprobs=old,
        teacher_logprobs=told,
        k_star=selected.k_star,
        overlap=overlap,
        tied=selected.tied,
    )


def _signal(student_ids: Tensor, student_logprobs: Tensor, teacher: TeacherRows) -> Tensor:
    """sum_v w_v |ell_T(v) - ell_old(v)| over the student's top-K, [N, M]."""
    assert teacher.at_student is not None, "this selection reads teacher log-probs at the student's ids"
    weights = masked_softmax(student_logprobs, student_ids >= 0)[:, None]
    gaps = (teacher.at_student - student_logprobs[:, None]).abs()
    return torch.where(weights > 0, gaps * weights, 0.0).sum(-1)


def _sides(student_ids: Tensor, stats: RowStats, teacher: TeacherRows, k_star: Tensor) -> Sides:
    def at_k_star(x: Tensor) -> Tensor:
        return x.gather(1, k_star[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)

    teacher_ids, teacher_logprobs = at_k_star(teacher.ids), at_k_star(teacher.logprobs)
    shared, place = find(student_ids, teacher_ids)
    return Sides(
        student_ids=student_ids,
        student_logprobs=stats.top_logprobs,
        teacher_ids=teacher_ids,
        teacher_logprobs=teacher_logprobs,
        teacher_at_student=None if teacher.at_student is None else at_k_star(teacher.at_student),
        old_at_teacher=None if stats.gathered is None else at_k_star(stats.gathered.view(teacher.ids.shape)),
        shared=shared,
        teacher_at_shared=teacher_logprobs.gather(1, place),
    )
