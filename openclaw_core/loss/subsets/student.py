"""S_t = the student's top-K."""

from openclaw_core.loss.support import Sides, Subset, Support


def build(sides: Sides) -> Support:
    assert sides.teacher_at_student is not None
    return Support(sides.student_ids, sides.student_ids >= 0, sides.student_logprobs, sides.teacher_at_student)


SUBSET = Subset(build, reads_at_student=True)
