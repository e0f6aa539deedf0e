"""Simulated users who talk to the proxy with the openai client: they set tasks, complain when a reply misses their style,
and thank when it is right."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

from openclaw_core.sim import styles
from openclaw_core.sim.measure import user
from openclaw_core.sim.styles import STYLES, pick
from openclaw_core.sim.tasks import EASE, Task, tasks
from openclaw_core.types import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@dataclass
class SessionRecord:
    """What one session saw. held and solved hold one entry per task, of its first reply."""

    session_id: str
    held: list[bool] = field(default_factory=list)
    solved: list[bool] = field(default_factory=list)
    replies: int = 0
    complaints: int = 0
    thanks: int = 0
    given_up: int = 0


@dataclass
class Statistics:
    """All sessions in the order in which they began, and what went wrong on the way."""

    sessions: list[SessionRecord] = field(default_factory=list)
    waits: int = 0
    failures: int = 0

    def total(self, what: str) -> int:
        """Sum of one counter ("replies", "complaints", "thanks", "given_up") over all sessions."""
        return sum(int(getattr(session, what)) for session in self.sessions)

    def first_replies(self) -> list[bool]:
        """Whether the first reply to each task held the style, session by session."""
        return [held for session in self.sessions for held in session.held]

    def recent_rate(self, sessions: int) -> float | None:
        """Share of first replies that held the style in the last sessions; None before any reply."""
        held = [h for session in self.sessions[-sessions:] for h in session.held]
        return sum(held) / len(held) if held else None

    def sessions_until(self, rate: float, window: int = 20) -> int | None:
        """Number of sessions after which the last `window` ones first held the style at this rate; None if never."""
        for end in range(window, len(self.sessions) + 1):
            held = [h for session in self.sessions[end - window : end] for h in session.held]
            if held and sum(held) / len(held) >= rate:
                return end
        return None


@dataclass(frozen=True, slots=True)
class Manners:
    """How users behave. Shares are probabilities; patience_s bounds the wait for a server that is busy or away."""

    tasks_per_session: tuple[int, int] = (1, 3)
    complaints_per_task: int = 2
    complain: float = 1.0
    thank: float = 1.0
    patience_s: float = 600.0
    pause_s: float = 0.0


class StoppedError(Exception):
    """The users were told to stop."""


class Full(Exception):
    """The conversation has become too long for the model; people begin a new one."""


class SimulatedUsers:
    """`concurrency` users, each in one session at a time, until stop().

    base_url ends in /v1. on_session, if given, is called with each finished record. run() returns the statistics, which
    can be read at any time; it raises the client's error when the server refuses for longer than the users' patience.
    """

    def __init__(
        self, base_url: str, api_key: str = "none", preference: str = "capitals", concurrency: int = 16, seed: int = 0, *,
        model: str = "student", manners: Manners = Manners(), max_tokens: int | None = None,
        on_session: Callable[[SessionRecord], None] | None = None,
    ) -> None:  # fmt: skip
        self.base_url, self.api_key, self.model, self.max_tokens = base_url, api_key, model, max_tokens
        self.style, self.concurrency, self.seed, self.manners = STYLES[preference], concurrency, seed, manners
        self.statistics = Statistics()
        self._on_session = on_session
        self._numbers = count()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Lets each user finish the request under way and leave. Can be called from any thread, any number of times."""
        if self._loop is None:
            self._stop.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def run(self) -> Statistics:
        """Talks until stop()."""
        from openai import AsyncOpenAI

        self._loop = asyncio.get_running_loop()
        client = AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, max_retries=0)
        async with client, asyncio.TaskGroup() as group:
            for number in range(self.concurrency):
                group.create_task(self._user(client, number))
        return self.statistics

    async def _user(self, client: AsyncOpenAI, number: int) -> None:
        rng = random.Random(f"user-{self.seed}-{number}")  # noqa: S311 (tasks, not secrets)
        assignments = tasks("train", seed=self.seed * 1009 + number, ease=EASE)
        with suppress(StoppedError):
            while not self._stop.is_set():
                record = SessionRecord(f"sim-{self.seed}-{next(self._numbers):06d}")
                self.statistics.sessions.append(record)
                talk = _Talk(self, client, record, rng)
                with suppress(Full):
                    for _ in range(rng.randint(*self.manners.tasks_per_session)):
                        await talk.task(next(assignments))
                if self._on_session is not None:
                    self._on_session(record)

    async def pause(self, seconds: float) -> None:
        """Sleeps, or raises StoppedError as soon as the users are told to stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
        if self._stop.is_set():
            raise StoppedError


class _Talk:
    """One session: its messages, and the user's side of it."""

    def __init__(self, users: SimulatedUsers, client: AsyncOpenAI, record: SessionRecord, rng: random.Random) -> None:
        self.users, self.client, self.record, self.rng = users, client, record, rng
        self.messages: list[Message] = []

    async def task(self, task: Task) -> None:
        """Sets a task; complains while style or content is wrong, up to the limit; thanks when both are right."""
        style, manners = self.users.style, self.users.manners
        reply = await self.say(task.prompt)
        self.record.held.append(style.holds(reply))
        self.record.solved.append(style.solved(reply, task.answer))
        complaints = 0
        while not self._right(reply, task) and complaints < manners.complaints_per_task and self.rng.random() < manners.complain:
            complaints += 1
            self.record.complaints += 1
            reply = await self.say(self._complaint(reply))
        if not self._right(reply, task):
            self.record.given_up += 1
        elif self.rng.random() < manners.thank:
            self.record.thanks += 1
            await self.say(self.rng.choice(styles.THANKS))

    def _right(self, reply: str, task: Task) -> bool:
        return self.users.style.holds(reply) and self.users.style.solved(reply, task.answer)

    def _complaint(self, reply: str) -> str:
        """What the user says of a reply that is not right: the manner first, the content once the manner is there."""
        style = self.users.style
        return self.rng.choice(styles.CORRECTIONS) if style.holds(reply) else pick(self.rng, style.complaints())

    async def say(self, text: str) -> str:
        """Sends the user's words and returns the reply."""
        if self.users.manners.pause_s:
            await self.users.pause(self.users.manners.pause_s * self.rng.uniform(0.5, 1.5))
        self.messages.append(user(text))
        reply = await self._ask()
        self.messages.append({"role": "assistant", "content": reply})
        self.record.replies += 1
        return reply

    async def _ask(self) -> str:
        """The reply, waiting through refusals (503) and lost connections as long as the users' patience allows."""
        from openai import APIConnectionError, APIStatusError, omit

        began, session = monotonic(), self.record.session_id
        while True:
            if self.users.stopping:
                raise StoppedError
            try:
                answer = await self.client.chat.completions.create(
                    model=self.users.model, messages=self.messages, user=session,  # type: ignore[arg-type]
                    max_tokens=omit if self.users.max_tokens is None else self.users.max_tokens,
                    extra_headers={"X-Session-Id": session},
                )  # fmt: skip
                return answer.choices[0].message.content or ""
            except (APIConnectionError, APIStatusError) as error:
                if getattr(error, "code", None) == "context_length_exceeded":
                    raise Full from error
                wait = _retry_after(error)
                if wait is None or monotonic() - began + wait > self.users.manners.patience_s:
                    self.users.statistics.failures += 1
                    raise
                self.users.statistics.waits += 1
            await self.users.pause(wait)


def _retry_after(error: Exception) -> float | None:
    """Seconds to wait before asking again: what a 503 says, else 0.5; None for errors that waiting does not mend.

    A 502 is an empty or broken reply: people simply ask again.
    """
    from openai import APIStatusError

    if not isinstance(error, APIStatusError) or error.status_code == 502:
        return 0.5
    if error.status_code != 503:
        return None
    text = error.response.headers.get("retry-after", "")
    return min(max(float(text), 0.05), 30.0) if text.replace(".", "", 1).isdigit() else 0.5
