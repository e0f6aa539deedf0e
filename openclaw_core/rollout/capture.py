"""From closed turn to sample: judge, rank hints, dispatch, store. The store is the queue, so a stop loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from openclaw_core.rollout.dispatch import TOO_LONG, Dispatch, OnLength, dispatch, majority
from openclaw_core.rollout.guards import guard_votes
from openclaw_core.rollout.hints import accepted_hints, rank_hints
from openclaw_core.rollout.judge import JudgeDown
from openclaw_core.rollout.store import Store, TurnRecord, Vote
from openclaw_core.rollout.template import ChatTemplate, HintPlacement, off_loop
from openclaw_core.types import Hint, Verdict

log = logging.getLogger("openclaw.capture")

GIVE_UP_AFTER = 6
"""Attempts at one turn while the judge answers about others; during an outage of the judge attempts don't count."""


class Judge(Protocol):
    """What the capture asks of a judge; JudgeClient has it."""

    async def judge(self, turn: Any, next_state: Any) -> list[Vote]: ...


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """max_candidates hints are kept per turn; at most concurrency turns are judged at once; retries wait 1 s, doubling.

    guards_override lets structured evidence (guards.py) stand above the judge's verdict; it is stored in any case. Candidates of
    more than teacher_context tokens are left out; anchored says that the teacher reads un-hinted sequences too.
    """

    max_candidates: int = 3
    guards_override: bool = False
    on_length: OnLength = "drop"
    hint_placement: HintPlacement = "last_user"
    teacher_context: int | None = None
    anchored: bool = False
    concurrency: int = 16
    session_idle_s: float = 1800.0
    first_retry_s: float = 1.0
    longest_retry_s: float = 60.0
    sweep_every_s: float = 5.0


class Capture:
    """Runs in one event loop: start(), then wake() whenever a turn was closed; stop() ends it.

    What an earlier process left closed is taken up at the start.
    """

    def __init__(self, store: Store, judge: Judge, template: ChatTemplate, settings: CaptureSettings) -> None:
        self.store, self.judge, self.template, self.settings = store, judge, template, settings
        self._work: dict[str, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._answered_at = 0.0
        self._outage: str | None = None
        self._outage_since: float | None = None

    def start(self) -> None:
        self._woken.set()
        self._loops = [asyncio.create_task(self._schedule()), asyncio.create_task(self._sweep())]

    async def stop(self) -> None:
        """Cancels what is under way; those turns stay closed and are judged after the next start."""
        tasks = [*self._loops, *self._work.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        self._woken.set()

    async def settle(self, timeout_s: float) -> bool:
        """Waits until every closed turn became a sample or was dropped; False when that took longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.store.pending_turns(1):
                    await asyncio.sleep(0.02)
                return True
        return False

    def status(self) -> dict[str, Any]:
        """judging counts turns at the judge; outage is why the judge can't be asked, None where it can."""
        since = None if self._outage_since is None else round(time.monotonic() - self._outage_since, 1)
        return {"judging": len(self._work), "outage": self._outage, "outage_s": since}

    async def _schedule(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                self._fill()
            except sqlite3.Error as error:
                log.error("the store cannot be read: %s", error)
                asyncio.get_running_loop().call_later(self.settings.sweep_every_s, self._woken.set)

    def _fill(self) -> None:
        """Starts on the oldest closed turns up to the limit."""
        for turn_id in self.store.pending_turns(self.settings.concurrency + len(self._work)):
            if len(self._work) >= self.settings.concurrency:
                break
            if turn_id not in self._work:
                task = asyncio.create_task(self._process(turn_id))
                self._work[turn_id] = task
                task.add_done_callback(partial(self._done, turn_id))

    def _done(self, turn_id: str, task: asyncio.Task[None]) -> None:
        del self._work[turn_id]
        if task.cancelled():
            return
        error = task.exception()
        if error:
            # The store failed (a full disk, a lock held too long): the turn is still closed, so it is tried again later.
            log.error("turn %s waits: %s", turn_id, error)
            asyncio.get_running_loop().call_later(self.settings.sweep_every_s, self._woken.set)
        else:
            self._woken.set()

    async def _sweep(self) -> None:
        """Ends idle sessions, and looks for turns that another process closed."""
        while True:
            try:
                self.store.end_idle_sessions(self.settings.session_idle_s)
            except sqlite3.Error as error:
                log.error("idle sessions cannot be ended: %s", error)
            self._woken.set()
            await asyncio.sleep(self.settings.sweep_every_s)

    async def _process(self, turn_id: str) -> None:
        record = self.store.turn(turn_id)
        if record is None or record.state != "closed":
            return
        try:
            if record.judged_at is None and not await self._judge(record):
                self.store.drop_turn(turn_id, "judge_failed")
                return
            await self._dispatch(record)
        except sqlite3.Error:
            raise
        except Exception as error:
            # One bad turn must neither end the collection nor be tried for ever.
            log.exception("turn %s cannot be dispatched", turn_id)
            self.store.add_event("capture_error", turn_id, error=f"{type(error).__name__}: {error}")
            self.store.drop_turn(turn_id, "capture_error")

    async def _judge(self, record: TurnRecord) -> bool:
        """Records the votes; False when the judge fails at this turn alone, again and again."""
        turn, began, attempts, pause = record.turn, time.monotonic(), 0, self.settings.first_retry_s
        while True:
            try:
                votes = await self.judge.judge(turn, record.next_state or ())
            except JudgeDown as error:
                if self._answered_at > began:
                    attempts += 1
                    if attempts >= GIVE_UP_AFTER:
                        self.store.add_event("judge_failed", turn.turn_id, error=str(error))
                        return False
                elif self._outage is None:
                    self._outage_since = time.monotonic()
                    self.store.add_event("judge_outage", turn.turn_id, error=str(error))
                    log.warning("judge: %s Turns wait.", error)
                self._outage = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, self.settings.longest_retry_s)
                continue
            self._answered_at = time.monotonic()
            self._outage = self._outage_since = None
            votes = [*votes, *guard_votes(turn, record.next_state or ())]
            self.store.record_votes(turn.turn_id, votes, rank_hints(votes, self.settings.max_candidates))
            return True

    async def _dispatch(self, record: TurnRecord) -> None:
        turn = record.turn
        verdict = majority(vote.value for vote in self.store.votes(turn.turn_id, "verdict"))
        guards = self.store.votes(turn.turn_id, "guard")
        if guards and self.settings.guards_override:
            verdict = Verdict(-1, verdict.votes)
        hints = accepted_hints(self.store.hints(turn.turn_id))
        result = await off_loop(turn.messages, lambda: self._case(record, verdict, hints))
        for left in result.too_long:
            self.store.reject_hint(turn.turn_id, left.hint.text, TOO_LONG)
            limit = self.settings.teacher_context
            self.store.add_event(TOO_LONG, turn.turn_id, hint=left.hint.text, tokens=left.tokens, limit=limit)
        if result.sample:
            self.store.add_sample(result.sample)
        else:
            self.store.drop_turn(turn.turn_id, result.reason or "no_sample")

    def _case(self, record: TurnRecord, verdict: Verdict, hints: Sequence[Hint]) -> Dispatch:
        turn = record.turn
        return dispatch(
            turn,
            verdict,
            hints,
            hinted_prompt_ids=lambda hint: self.template.hinted_prompt_ids(
                turn.messages,
                turn.tools,
                hint,
                thinking=record.thinking,
                placement=self.settings.hint_placement,
                prompt_ids=turn.prompt_ids,
            ),
            on_length=self.settings.on_length,
            flags=record.flags,
            teacher_context=self.settings.teacher_context,
            anchored=self.settings.anchored,
            sample_id=uuid4().hex,
        )
