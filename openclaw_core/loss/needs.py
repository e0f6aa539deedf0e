"""What the objective of a config reads, so that a run does only the work that is asked for. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openclaw_core.config.schema import Loss
from openclaw_core.loss.selection import RULES
from openclaw_core.loss.support import SUBSETS
from openclaw_core.types import SampleKind


@dataclass(frozen=True, slots=True)
class Needs:
    """teacher: any teacher at all. at_student: teacher log-probs at the student's top-K ids. old_at_teacher: old
    log-probs at the teacher's native ids. candidates: how many of a sample's candidates the teacher must score.
    rl_only: whether RL-only samples need the teacher. student_k: K of the student's top-K in the old pass, 0 for none.
    reference: log-probs of the sampled ids under the starting student.
    """

    teacher: bool
    at_student: bool
    old_at_teacher: bool
    candidates: Literal["all", "first"]
    rl_only: bool
    student_k: int
    reference: bool

    def scores(self, kind: SampleKind) -> bool:
        """Whether the teacher has to score a sample of this kind."""
        return self.teacher and (self.rl_only or kind is not SampleKind.RL)


def needs(cfg: Loss) -> Needs:
    """The inputs that cfg's objective reads; weights of 0 ask for nothing."""
    rule, subset = RULES.get(cfg.selection), SUBSETS.get(cfg.subset)
    teacher = cfg.w_opd > 0
    return Needs(
        teacher=teacher,
        at_student=teacher and (subset.reads_at_student or rule.reads_signal),
        old_at_teacher=teacher and subset.reads_old_at_teacher,
        candidates="first" if cfg.max_candidates == 1 else rule.candidates,
        rl_only=teacher and cfg.opd_on_rl_only == "anchor",
        student_k=cfg.k if teacher else 0,
        reference=cfg.kl_coef > 0,
    )
