"""S_t = the top-K of the teacher's candidate k*."""

from openclaw_core.loss.support import Sides, Subset, Support


def build(sides: Sides) -> Support:
    assert sides.old_at_teacher is not None
    return Support(sides.teacher_ids, sides.teacher_ids >= 0, sides.old_at_teacher, sides.teacher_logprobs)


SUBSET = Subset(build, reads_old_at_teacher=True)
