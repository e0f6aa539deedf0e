"""The simulated users as an actor: they talk to the proxy, and their preference is read on held-out tasks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING

from openclaw_core.config.schema import Config
from openclaw_core.errors import UserError
from openclaw_core.run.actors.process import enter
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.types import Message

if TYPE_CHECKING:
    from openclaw_core.rollout.template import ChatTemplate

READERS = 32


class UsersActor:
    """Wraps sim.users.SimulatedUsers."""

    def __init__(self, run: RunFolder, config: Config) -> None:
        enter(run, "users", 0)
        self.config = config
        self._template: ChatTemplate | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, url: str, first_step: int) -> None:
        """Users begin to talk. A run that goes on has other users than the one before it."""
        from openclaw_core.sim.users import SimulatedUsers

        settings, key = self.config.users, self.config.proxy.api_key_env
        assert settings is not None
        self.users = SimulatedUsers(
            url,
            os.environ[key] if key else "none",
            settings.preference,
            settings.concurrency,
            seed=self.config.train.seed + 7919 * first_step,
        )
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def _talk(self) -> None:
        try:
            asyncio.run(self.users.run())
        except BaseException as error:
            self._failure = error

    def sessions(self) -> int:
        """Sessions begun so far; UserError when the users had to give up."""
        if self._failure is not None:
            error = self._failure
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise UserError(f"The simulated users gave up: {type(error).__name__}: {error}.", "Look into logs/proxy-0.log.")
        return len(self.users.statistics.sessions)

    def evaluate(self, engine_urls: Sequence[str]) -> tuple[float, float, int]:
        """Preference rate, solved rate and number of held-out tasks, without any hint, asked of the engines directly."""
        from openclaw_core.rollout.template import ChatTemplate

        if self._template is None:
            assert self.config.student.hf is not None
            self._template = ChatTemplate.from_folder(self.config.student.hf, thinking=self.config.rollout.thinking)
        return asyncio.run(_evaluate(self.config, self._template, engine_urls))

    def leave(self) -> None:
        """Asks the users to leave after the request under way; returns at once."""
        if self._thread is not None:
            self.users.stop()

    def stop(self) -> None:
        """Users finish the request under way and leave."""
        if self._thread is not None:
            self.users.stop()
            self._thread.join(timeout=30)


# A coroutine among the methods would make Ray run the actor in an event loop, so it stands outside.
async def _evaluate(config: Config, template: ChatTemplate, engine_urls: Sequence[str]) -> tuple[float, float, int]:
    from openclaw_core.rollout.engines.client import EngineClient
    from openclaw_core.sim.measure import evaluate
    from openclaw_core.sim.styles import STYLES
    from openclaw_core.sim.tasks import EASE, tasks

    settings, rollout = config.users, config.rollout
    assert settings is not None
    clients = [EngineClient(url) for url in engine_urls]
    turn, places = cycle(clients), asyncio.Semaphore(READERS)
    parameters = {
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k,
        "max_new_tokens": rollout.max_response_tokens,
    }

    async def generate(messages: list[Message]) -> str:
        async with places:
            ids = template.prompt_ids(messages, ())
            answer = await next(turn).generate(ids, parameters)
        return str(template.parse_reply(answer.response_ids, ids, turn_id="reading").message["content"] or "")

    rates = await evaluate(
        generate, list(islice(tasks("held_out", seed=10_007, ease=EASE), settings.eval_tasks)), STYLES[settings.preference]
    )
    await asyncio.gather(*(client.aclose() for client in clients))
    return rates.obeyed, rates.solved, rates.count
