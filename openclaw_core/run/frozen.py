"""Proof that the teacher stayed as it was loaded: a hash of its weights before the first step and after the last."""

from __future__ import annotations

from openclaw_core.errors import UserError
from openclaw_core.run.fleet import Fleet
from openclaw_core.run.runfolder import RunFolder


class Frozen:
    """Hashes the teacher now; both hashes go to run.json. Without a teacher nothing is done."""

    def __init__(self, run: RunFolder, fleet: Fleet) -> None:
        self.run, self.fleet = run, fleet
        self.before = fleet.teacher_hash() if fleet.has_teacher else None
        if self.before is not None:
            run.update(facts={"teacher_hash": self.before})

    def prove(self) -> None:
        """Hashes again. Raises UserError when the weights are others than before."""
        if self.before is None:
            return
        after = self.fleet.teacher_hash()
        self.run.update(facts={"teacher_hash_end": after})
        if after != self.before:
            raise UserError(
                f"The teacher's weights changed during the run: hash {self.before} before, {after} after.",
                "What was trained in this run had no fixed target; report it, and start anew.",
            )
