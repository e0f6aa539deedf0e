"""What a running loop tells whoever watches it. The loop knows no terminal; a watcher renders."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import UserError


@dataclass
class Progress:
    """The state of the loop at this moment. Seconds are wall-clock; rates are shares of held-out tasks.

    after_step is the step that this leg of the run began after; proxy is the address for OpenAI clients, once it answers.
    """

    run_folder: str
    steps: int
    step: int = 0
    after_step: int = 0
    stage: str = "starting"
    weight_version: int = 0
    funnel: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    opd_samples: tuple[int, int] | None = None  # of the last step: those that have an OPD term, and all
    readings: list[tuple[int, float, float]] = field(default_factory=list)
    sessions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    last_save: int | None = None
    proxy: str = ""
    started: float = field(default_factory=time.time)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Names the stage and adds the time spent in it to seconds[stage]."""
        self.stage = stage
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - begin


class Watcher(Protocol):
    """Renders progress; every method returns at once."""

    def note(self, text: str) -> None:
        """One line worth keeping; may be called from any thread."""

    def update(self, progress: Progress) -> None:
        """The state changed."""

    def last(self, error: UserError) -> None:
        """Why this process ends as soon as this returns; called from another thread than the rest."""


class SilentWatcher:
    """Watches nothing."""

    def note(self, text: str) -> None:
        """Drops the line."""

    def update(self, progress: Progress) -> None:
        """Drops the state."""

    def last(self, error: UserError) -> None:
        """Writes it to stderr: nobody else will."""
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
