"""The engine's thread: commands and generation steps take turns, so nothing else ever touches the model."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, TypeVar

from openclaw_core.rollout.engines.embedded import weights
from openclaw_core.rollout.engines.embedded.batching import Batcher
from openclaw_core.rollout.engines.embedded.request import Request

log = logging.getLogger(__name__)
T = TypeVar("T")
PauseMode = Literal["abort", "in_place", "retract"]


class RefusedError(Exception):
    """A control call that can't be done now; the text says why."""


class EngineThread:
    """Runs the batcher. All methods may be called from any thread; futures resolve between two steps."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._when_quiet: list[Callable[[], None]] = []
        self._paused: PauseMode | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def paused(self) -> bool:
        return self._paused is not None

    @property
    def load(self) -> tuple[int, int]:
        """Requests running and waiting, as of now."""
        return len(self._batcher.rows), len(self._batcher.waiting)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends every request as aborted and then the thread."""

        def command() -> None:
            self._batcher.abort(None)
            self._stopping = True

        self._inbox.put(command)
        self._thread.join(timeout=10.0)

    def submit(self, requests: list[Request]) -> None:
        self._inbox.put(lambda: self._batcher.waiting.extend(requests))

    def abort(self, rid: str | None) -> Future[None]:
        return self._call(lambda: self._batcher.abort(rid))

    def pause(self, mode: PauseMode) -> Future[None]:
        def command() -> None:
            self._paused = mode
            if mode == "abort":
                self._batcher.abort(None)
            elif mode == "retract":
                self._batcher.retract()

        return self._call(command)

    def resume(self) -> Future[None]:
        def command() -> None:
            self._paused = None

        return self._call(command)

    def flush(self) -> Future[bool]:
        """Frees the cache; False while requests run, or wait without a pause, as in SGLang."""
        return self._call(lambda: (self._batcher.idle or self.paused) and self._batcher.flush())

    def update(self, folder: Path, version: str | None, *, flush: bool, abort_all: bool) -> Future[None]:
        """Loads and checks the weights at once, then swaps them in when nothing runs, or now when paused.

        The future fails with BadWeightsError or RefusedError, and the old weights stay.
        """
        done: Future[None] = Future()

        def swap() -> None:
            if flush and self._batcher.rows:
                raise RefusedError(
                    "Requests are paused in place and their cache can't be flushed: update with flush_cache=false."
                )
            weights.apply(self._batcher.model.module, staged)
            self._batcher.model.folder = folder
            self._batcher.new_version(version if version is not None else self._batcher.version)
            if flush:
                self._batcher.flush()

        def command() -> None:
            if abort_all:
                self._batcher.abort(None)
            self._when_quiet.append(lambda: _settle(done, swap))

        try:
            staged = weights.stage(folder, self._batcher.model.module)
        except weights.BadWeightsError as error:
            done.set_exception(error)
            return done
        self._inbox.put(command)
        return done

    def _call(self, command: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()
        self._inbox.put(lambda: _settle(done, command))
        return done

    def _run(self) -> None:
        while not self._stopping:
            self._obey()
            if self._when_quiet and (self._paused or not self._batcher.rows):
                self._when_quiet.pop(0)()
            elif not self._paused:
                self._step()

    def _obey(self) -> None:
        """Runs all commands in the inbox; sleeps on it when there is nothing else to do."""
        nothing_to_do = not self._when_quiet and (self._paused is not None or self._batcher.idle)
        if nothing_to_do:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def _step(self) -> None:
        try:
            self._batcher.step(admit=not self._when_quiet)
        except Exception as error:
            log.exception("A generation step failed; its requests end with an error.")
            self._batcher.fail_all(f"The engine failed on a step: {type(error).__name__}: {error}")


def _settle(done: Future[T], command: Callable[[], T]) -> None:
    """Runs command for a future whose caller may have given up."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(command())
    except Exception as error:
        done.set_exception(error)
