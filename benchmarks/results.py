"""What a run came to, read from its folder and kept as one line of a small JSON file."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.experiments import Run
from openclaw_core.errors import UserError
from openclaw_core.files import write_atomic
from openclaw_core.run.report import readings_of
from openclaw_core.track.sinks import read_metrics

FINISHED = "finished"
OUTSIDE_TRAINING = ("start", "eval")


@dataclass(frozen=True, slots=True)
class Record:
    """A run's outcome.

    readings are (step, sessions, preference rate, solved rate of the styled replies, tasks); held is (step, sessions, seconds of
    training until then), None where the preference did not hold. seconds is time per stage, cpu_seconds that of all processes
    of the run, load the machine's load average when it ended. error says why a run isn't finished, earlier why attempts before
    it failed.
    """

    settings: tuple[tuple[str, str], ...]
    state: str
    error: str = ""
    earlier: tuple[str, ...] = ()
    readings: tuple[tuple[int, int | None, float, float | None, int | None], ...] = ()
    held: tuple[int, int | None, float] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    load: float = 0.0
    jobs: int = 1
    machine: str = ""
    program: str = ""

    @property
    def run(self) -> Run:
        return Run(self.settings)

    @property
    def finished(self) -> bool:
        return self.state == FINISHED

    @property
    def training_seconds(self) -> float:
        """Time of the loop without start-up and readings."""
        return sum(value for stage, value in self.seconds.items() if stage not in OUTSIDE_TRAINING)

    def rate(self, step: int) -> float | None:
        """The preference rate read at step; of a run that was done before, its last reading."""
        if self.finished and self.readings and step > self.readings[-1][0]:
            return self.readings[-1][2]
        return next((reading[2] for reading in self.readings if reading[0] == step), None)

    @property
    def first(self) -> float | None:
        """The rate before training."""
        return self.rate(0)

    @property
    def last(self) -> float | None:
        """The rate of the last reading after training."""
        return self.readings[-1][2] if self.readings and self.readings[-1][0] > 0 else None

    @property
    def solved(self) -> float | None:
        """Share of the last reading's styled replies that solve the task; None where there are none."""
        return self.readings[-1][3] if self.last else None

    def passed(self, level: float) -> int | None:
        """Step of the first reading at or above level."""
        return next((reading[0] for reading in self.readings if reading[2] >= level), None)


def read_run(run: Run, folder: Path) -> Record:
    """The record of a run folder. A folder without a readable report is a failed run, with what its metrics hold."""
    lines, _ = read_metrics(folder / "metrics.jsonl")
    readings = tuple((r.step, r.sessions, r.preference_rate, r.solved_rate, r.tasks) for r in readings_of(lines))
    found = Record(run.settings, "failed", "It left no report.", readings=readings)
    try:
        report: dict[str, Any] = json.loads((folder / "report.json").read_bytes())
        held = report["held"]
        return replace(
            found,
            state=str(report["state"]),
            error="" if report["state"] == FINISHED else str(report["reason"] or report["state"]),
            held=None if held is None else (held["step"], held["sessions"], _training_until(held["step"], lines)),
            seconds={name: float(value) for name, value in report["seconds"].items()},
            wall_seconds=float(report["wall_seconds"]),
        )
    except FileNotFoundError:
        return found
    except (ValueError, KeyError, TypeError) as error:
        return replace(found, error=f"Its report can't be read ({type(error).__name__}: {error}).")


def _training_until(step: int, lines: Iterable[dict[str, Any]]) -> float:
    stages = (
        float(value)
        for line in lines
        if line["step"] <= step
        for name, value in line.items()
        if name.startswith("seconds/") and name.removeprefix("seconds/") not in OUTSIDE_TRAINING and value is not None
    )
    return round(sum(stages), 1)


def to_dict(record: Record) -> dict[str, Any]:
    """The record as JSON has it."""
    return {**asdict(record), "settings": dict(record.settings)}


def from_dict(body: dict[str, Any]) -> Record:
    """The record that to_dict wrote; raises KeyError or TypeError for something else."""
    return Record(
        **{
            **body,
            "settings": tuple((str(k), str(v)) for k, v in body["settings"].items()),
            "earlier": tuple(body["earlier"]),
            "readings": tuple(map(tuple, body["readings"])),
            "held": None if body["held"] is None else tuple(body["held"]),
        }
    )


def load(path: Path) -> dict[Run, Record]:
    """The records of a results file, by run; none where there is no file. Raises UserError for a file of another kind."""
    if not path.exists():
        return {}
    try:
        records = [from_dict(body) for body in json.loads(path.read_bytes())["runs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} holds no results ({type(error).__name__}: {error}).", "Take it from the repository.") from error
    return {record.run: record for record in records}


def store(path: Path, records: dict[Run, Record]) -> None:
    """Write the records, one a line and in a settled order, so that changes are easy to see."""
    bodies = [
        json.dumps(to_dict(r), separators=(",", ":")) for _, r in sorted(records.items(), key=lambda item: item[0].settings)
    ]
    write_atomic(path, '{"runs":[\n' + ",\n".join(bodies) + "\n]}\n")


def median(values: Sequence[float | None]) -> float | None:
    """The median, where None counts as larger than every number; None where the median itself is such a one."""
    if not values:
        return None
    middle = statistics.median([math.inf if value is None else value for value in values])
    return None if math.isinf(middle) else middle
