"""The progress bar of convert-ckpt."""

from __future__ import annotations

from typing import Any

from openclaw_cli.output import Output


class Bars:
    """One progress bar over both stages, in bytes, with rate and time left."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._done: dict[str, int] = {}
        self._context: Any = None
        self._bar: Any = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes the bar away."""
        if self._context is not None:
            self._context.__exit__(None, None, None)
            self._context = None

    def show(self, stage: str, done: int, total: int) -> None:
        """stage is write or verify, done and total are bytes."""
        if self._bar is None:
            both = {"write": ("Writing and verifying", 2 * total), "verify": ("Verifying", total)}
            label, whole = both[stage]
            self._context = self._out.progress(label, whole, nbytes=True)
            self._bar = self._context.__enter__()
        self._bar.advance(done - self._done.get(stage, 0))
        self._done[stage] = done
