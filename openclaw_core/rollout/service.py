"""The rollout side as one object: proxy, gate, engines and capture in a thread of their own, driven from any other thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI

from openclaw_core.config.schema import Config
from openclaw_core.errors import UserError
from openclaw_core.rollout.capture import Capture, CaptureSettings
from openclaw_core.rollout.chat import Chat
from openclaw_core.rollout.engines.client import EngineClient
from openclaw_core.rollout.gate import Gate
from openclaw_core.rollout.judge import JudgeClient
from openclaw_core.rollout.pool import EnginePool
from openclaw_core.rollout.proxy import create_app
from openclaw_core.rollout.settings import LOOPBACK, ProxySettings
from openclaw_core.rollout.store import Store
from openclaw_core.rollout.template import ChatTemplate

START_TIMEOUT_S = 30.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Everything a RolloutService is told. port 0 takes a free one."""

    proxy: ProxySettings
    capture: CaptureSettings
    host: str = "127.0.0.1"
    port: int = 0
    judge_model: str = "judge"
    judge_api_key: str | None = field(default=None, repr=False)
    verdict_votes: int = 3
    hint_votes: int = 3
    judge_temperature: float = 0.6
    judge_max_tokens: int = 1024
    judge_timeout_s: float = 120.0

    @classmethod
    def from_config(
        cls, config: Config, env: Mapping[str, str] | None = None, *, teacher_positions: int | None = None
    ) -> ServiceSettings:
        """Reads the sections rollout, proxy, judge and loss; keys come from the environment variables they name.

        A kind of vote that no term of the objective reads isn't asked for: no hints when w_opd is 0, no verdicts when w_rl is 0
        (unless un-hinted samples anchor the student). teacher_positions is what the teacher was made for. Raises UserError for
        a variable that is named and not set.
        """
        env = os.environ if env is None else env
        rollout, proxy, judge, loss = config.rollout, config.proxy, config.judge, config.loss
        limits = [n for n in (rollout.teacher_context_length, teacher_positions) if n is not None]
        verdicts = loss.w_rl > 0 or (loss.w_opd > 0 and loss.opd_on_rl_only == "anchor")
        return cls(
            proxy=ProxySettings(
                context_length=rollout.context_length, max_response_tokens=rollout.max_response_tokens,
                temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k, thinking=rollout.thinking,
                on_length=rollout.on_length, max_waiting=proxy.max_waiting,
                api_key=_secret(env, proxy.api_key_env, "proxy.api_key_env"),
                key_setting="proxy.api_key_env" + (f" (environment variable {proxy.api_key_env})" if proxy.api_key_env else ""),
            ),
            capture=CaptureSettings(
                max_candidates=loss.max_candidates, guards_override=judge.guards, on_length=rollout.on_length,
                session_idle_s=rollout.session_idle_s, hint_placement=rollout.hint_placement,
                teacher_context=min(limits, default=None), anchored=loss.w_opd > 0 and loss.opd_on_rl_only == "anchor",
            ),
            host=proxy.host, port=proxy.port, judge_model=judge.model or "judge",
            judge_api_key=_secret(env, judge.api_key_env, "judge.api_key_env"),
            verdict_votes=judge.votes if verdicts else 0, hint_votes=judge.votes if loss.w_opd > 0 else 0,
            judge_temperature=judge.temperature, judge_max_tokens=judge.max_tokens, judge_timeout_s=judge.timeout_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a stop cut: requests that were still being answered, and closed turns that are judged at the next start."""

    cut_requests: int
    unjudged_turns: int


class RolloutService:
    """start() binds at once and answers 503 until an engine generates; stop() drains. All methods may be called from any thread.

    Raises UserError for an address that is taken or open to the network without a key.
    """

    def __init__(
        self, settings: ServiceSettings, *, store_path: str | Path, engine_urls: Sequence[str], judge_url: str,
        tokenizer_folder: str | Path,
    ) -> None:  # fmt: skip
        if settings.host not in LOOPBACK and not settings.proxy.api_key:
            raise UserError(
                f"The proxy would listen on {settings.host} without a key, and whoever can chat can train the model.",
                "Set proxy.api_key_env, or listen on 127.0.0.1.",
            )
        self.settings = settings
        self.engine_urls = tuple(engine_urls)
        self.judge_url = judge_url
        self.template = ChatTemplate.from_folder(tokenizer_folder, thinking=settings.proxy.thinking)
        self.store = Store(store_path)
        self._weight_version = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._port = 0

    @classmethod
    def from_config(
        cls, config: Config, *, store_path: str | Path, engine_urls: Sequence[str], judge_url: str, tokenizer_folder: str | Path,
        env: Mapping[str, str] | None = None, teacher_positions: int | None = None,
    ) -> RolloutService:  # fmt: skip
        return cls(
            ServiceSettings.from_config(config, env, teacher_positions=teacher_positions), store_path=store_path,
            engine_urls=engine_urls, judge_url=judge_url, tokenizer_folder=tokenizer_folder,
        )  # fmt: skip

    @property
    def port(self) -> int:
        """The port that start() bound."""
        return self._port

    @property
    def url(self) -> str:
        """Base address for OpenAI clients, /v1 included."""
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{self._port}/v1"

    def start(self) -> int:
        """Binds and serves; returns the port. Engines need not be up yet."""
        listener = _listen(self.settings.host, self.settings.port)
        self._port = listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="rollout", daemon=True)
        self._thread.start()
        if not self._up.wait(START_TIMEOUT_S) or self._failure:
            raise UserError(f"The proxy did not start: {self._failure or 'no answer in time'}.", "Look into its log.")
        return self._port

    def probe_judge(self) -> None:
        """Raises UserError when the judge can't be asked or doesn't follow the prompt."""
        self._call(self._judge.probe())

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether an engine has generated a token within timeout_s."""

        async def wait() -> bool:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not self._pool.ready:
                        await asyncio.sleep(0.05)
            return self._pool.ready

        return self._call(wait())

    def pause(self, drain_s: float = 600.0) -> int:
        """Holds new requests and waits for those under way; returns how many of them are left after drain_s."""

        async def pause() -> int:
            self._gate.pause()
            self._pool.hold(True)
            return await self._gate.drain(drain_s)

        return self._call(pause())

    def resume(self) -> None:
        """Lets requests in again. Call set_weight_version before."""

        async def resume() -> None:
            self._pool.hold(False)
            self._gate.resume()

        self._call(resume())

    def set_weight_version(self, version: int) -> None:
        """What /status shows; the version of a turn comes from its engine."""
        self._weight_version = version
        self.store.add_event("weight_version", detail_version=version)

    def settle(self, timeout_s: float) -> bool:
        """Waits until every closed turn is judged and dispatched."""
        return self._call(self._capture.settle(timeout_s))

    def status(self) -> dict[str, Any]:
        """Funnel, gate, engines, capture and weight version."""

        async def read() -> dict[str, Any]:
            return {"gate": self._gate.status(), "engines": self._pool.status(), **self._extra_status()}

        return {"funnel": self.store.funnel().as_dict(), **self._call(read())}

    def stop(self, drain_s: float = 30.0) -> Stopped:
        """Admits nobody, waits up to drain_s for replies under way, ends the capture and closes the store, which keeps all."""

        async def drain() -> int:
            self._gate.stop()
            left = await self._gate.drain(drain_s)
            self._server.should_exit = True
            self._server.force_exit = left > 0
            return left

        cut = self._call(drain()) if self._thread and self._thread.is_alive() else 0
        if self._thread:
            self._thread.join(timeout=drain_s + START_TIMEOUT_S)
        unjudged = len(self.store.pending_turns())
        self.store.add_event("service_stopped", cut_requests=cut, unjudged_turns=unjudged)
        self.store.close()
        return Stopped(cut, unjudged)

    def _extra_status(self) -> dict[str, Any]:
        return {"capture": self._capture.status(), "weight_version": self._weight_version}

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or not self._loop.is_running():
            work.close()
            raise self._not_running()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(timeout=1.0)
            except TimeoutError:
                if future.done():
                    raise
                # A loop that ended leaves its futures open for ever.
                if not self._loop.is_running():
                    raise self._not_running() from None

    def _not_running(self) -> UserError:
        cause = f": {type(self._failure).__name__}: {self._failure}" if self._failure else ""
        return UserError(f"The rollout service is not running{cause}.", "Start it, and look into its log.")

    def _serve(self, listener: socket.socket) -> None:
        try:
            asyncio.run(self._run(listener))
        except BaseException as error:
            self._failure = error
        finally:
            self._up.set()

    async def _run(self, listener: socket.socket) -> None:
        settings = self.settings
        self._engines = [EngineClient(url) for url in self.engine_urls]
        self._judge = JudgeClient(
            self.judge_url, model=settings.judge_model, api_key=settings.judge_api_key, verdict_votes=settings.verdict_votes,
            hint_votes=settings.hint_votes, temperature=settings.judge_temperature, max_tokens=settings.judge_max_tokens,
            timeout_s=settings.judge_timeout_s,
        )  # fmt: skip
        self._pool = EnginePool(self._engines)
        self._gate = Gate(max_waiting=settings.proxy.max_waiting, max_wait_s=settings.proxy.max_wait_s)
        self._capture = Capture(self.store, self._judge, self.template, settings.capture)
        chat = Chat(settings.proxy, self.store, self._pool, self.template, self._gate, turn_closed=self._capture.wake)
        app = create_app(chat, status=self._extra_status, lifespan=self._lifespan)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        self._server = uvicorn.Server(config)
        await self._server.serve(sockets=[listener])

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self._pool.start()
        self._capture.start()
        self._up.set()
        try:
            yield
        finally:
            await self._capture.stop()
            await self._pool.stop()
            await asyncio.gather(self._judge.aclose(), *(engine.aclose() for engine in self._engines))


def _secret(env: Mapping[str, str], name: str | None, setting: str) -> str | None:
    if name is None:
        return None
    if not env.get(name):
        raise UserError(f"{setting} names the environment variable {name}, which is not set.", f"export {name}=... first.")
    return env[name]


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise UserError(f"The proxy cannot listen on {host}:{port} ({error.strerror}).", "Set another proxy.port.") from error
    return listener
