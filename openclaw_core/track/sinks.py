"""Where metrics go: always a JSONL file, and TensorBoard files where its package is installed."""

from __future__ import annotations

import math
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from . import jsonl
from .jsonl import Problem


class Sink(Protocol):
    """Takes the metrics of one step."""

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Take metrics; names as in metrics.TABLE."""

    def close(self) -> None:
        """Bring everything to disk."""


class JsonlSink:
    """One object per step, on disk when write returns. A step written again (after a resume) counts in its last line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Append {"step", "time", **metrics}; numbers that aren't finite become null."""
        jsonl.append(self.path, {"step": step, "time": round(time.time(), 3), **metrics})

    def close(self) -> None:
        """Nothing is held back."""


class TensorBoardSink:
    """Event files for TensorBoard, through torch's writer. Numbers that aren't finite are left out.

    A writer that begins at a step takes back what earlier ones wrote from that step on, as a resume does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Add each finite number as a scalar."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=step)
        for name, value in metrics.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush the event file."""
        if self._writer is not None:
            self._writer.close()


class Sinks:
    """Several sinks as one."""

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = sinks

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Give metrics to every sink in turn."""
        for sink in self.sinks:
            sink.write(step, metrics)

    def close(self) -> None:
        """Close every sink."""
        for sink in self.sinks:
            sink.close()


def open_sinks(metrics: Path) -> Sinks:
    """The JSONL file and, where the package tensorboard is installed (the extra `track`), event files in a folder beside it."""
    if find_spec("tensorboard") is None:
        return Sinks(JsonlSink(metrics))
    return Sinks(JsonlSink(metrics), TensorBoardSink(metrics.parent / "tensorboard"))


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The metrics of each step, rising, with what could not be read; ([], []) where there is no file yet.

    A line of an earlier step begins a resume: what was written for later steps before it is no longer part of the run. Lines of
    one step add up, the later one counts where both have a metric.
    """
    if not path.exists():
        return [], []
    steps: dict[int, dict[str, Any]] = {}
    problems: list[Problem] = []
    for item in jsonl.read(path):
        if isinstance(item, Problem):
            problems.append(item)
        elif not isinstance(item.record.get("step"), int):
            problems.append(Problem(path.name, "has no step", item.number))
        else:
            step = item.record["step"]
            same = {**steps.get(step, {}), **item.record}
            steps = {earlier: record for earlier, record in steps.items() if earlier < step} | {step: same}
    return [steps[step] for step in sorted(steps)], problems
