"""The legs of a run: each from its start or resume to its end, with the time it took."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from .manifest import Manifest
from .progress import Progress
from .runfolder import RunFolder


@dataclass(frozen=True, slots=True)
class Leg:
    """From after_step to step. began is in seconds since the epoch, seconds is time per stage of the loop.

    Of a leg whose driver was killed, what came after its last whole step isn't known.
    """

    began: float
    after_step: int
    step: int
    wall_seconds: float
    seconds: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        made, first = self.step - self.after_step, self.after_step + 1
        steps = "no step" if made <= 0 else f"step {first}" if made == 1 else f"steps {first} to {self.step}"
        return f"{steps} in {self.wall_seconds:.0f} s"


def legs_of(manifest: Manifest) -> tuple[Leg, ...]:
    """The legs of a run, oldest first; none where its manifest doesn't tell of them in a way that can be understood."""
    records = manifest.facts.get("legs", ())
    if not isinstance(records, list) or not all(map(_sound, records)):
        return ()
    return tuple(sorted((Leg(**record) for record in records), key=lambda leg: leg.began))


def keep_leg(run: RunFolder, progress: Progress) -> None:
    """Writes the leg that progress tells of into the manifest, in place of what it said of this leg before."""
    wall = round(time.time() - progress.started, 1)
    stages = {name: round(value, 2) for name, value in progress.seconds.items()}
    leg = Leg(progress.started, progress.after_step, progress.step, wall, stages)
    earlier = (one for one in legs_of(run.read()) if one.began != leg.began)
    run.update(facts={"legs": [asdict(one) for one in (*earlier, leg)]})


def _sound(record: Any) -> bool:
    if not isinstance(record, dict) or set(record) != set(Leg.__dataclass_fields__):
        return False
    numbers = [value for name, value in record.items() if name != "seconds"]
    stages = record["seconds"]
    return isinstance(stages, dict) and all(isinstance(value, int | float) for value in (*numbers, *stages.values()))
