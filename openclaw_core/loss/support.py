"""Which ids the OPD term sums over at a position. A subset is one file in subsets/ that binds SUBSET."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openclaw_core.loss.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sides:
    """Student and the teacher's candidate k* at N rows, K ids each.

    teacher_at_student and old_at_teacher are None unless the subset asks for them; shared [N, K] says which of the
    student's ids are among the teacher's and teacher_at_shared [N, K] holds the teacher's log-probs there.
    """

    student_ids: Tensor
    student_logprobs: Tensor
    teacher_ids: Tensor
    teacher_logprobs: Tensor
    teacher_at_student: Tensor | None
    old_at_teacher: Tensor | None
    shared: Tensor
    teacher_at_shared: Tensor


@dataclass(frozen=True)
class Support:
    """ids, old_logprobs and teacher_logprobs [N, S]; mask [N, S] says which places count."""

    ids: Tensor
    mask: Tensor
    old_logprobs: Tensor
    teacher_logprobs: Tensor


@dataclass(frozen=True)
class Subset:
    """build makes the support; the flags say which extra log-probs the run has to fetch for it."""

    build: Callable[[Sides], Support]
    reads_at_student: bool = False
    reads_old_at_teacher: bool = False


SUBSETS: Registry[Subset] = Registry("subset", "openclaw_core.loss.subsets", "SUBSET")
