"""S_t = the ids that the student's top-K and that of the teacher's candidate k* share; may be empty."""

from openclaw_core.loss.support import Sides, Subset, Support


def build(sides: Sides) -> Support:
    return Support(sides.student_ids, sides.shared, sides.student_logprobs, sides.teacher_at_shared)


SUBSET = Subset(build)
