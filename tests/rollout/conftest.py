"""A byte-level tokenizer with a ChatML template, engines and judges that answer from a script, and a proxy around them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from openclaw_core.rollout.capture import Capture, CaptureSettings
from openclaw_core.rollout.chat import Chat
from openclaw_core.rollout.engines.client import Generation
from openclaw_core.rollout.gate import Gate
from openclaw_core.rollout.judge import JudgeClient
from openclaw_core.rollout.pool import EnginePool
from openclaw_core.rollout.proxy import create_app
from openclaw_core.rollout.settings import ProxySettings
from openclaw_core.rollout.store import NewTurn, Store
from openclaw_core.rollout.template import ChatTemplate
from openclaw_core.types import Turn

CHATML = """
{%- if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}
    {%- set content = m.content if m.content is string else '' %}
    {%- if m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\n' + content }}
        {%- for call in m.tool_calls or [] %}
            {%- set arguments = call.function.arguments %}
            {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (arguments if arguments is string else arguments | tojson) + '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}
""".strip()
OPEN_THINKING = CHATML.replace("'<|im_start|>assistant\n' }}", "'<|im_start|>assistant\n<think>\n' }}")


def make_tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["hi", "Ġw"]
    vocab = {token: index for index, token in enumerate([*alphabet, *merged])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "i"), ("Ġ", "w")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    fast.chat_template = template
    return fast


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def template(tokenizer) -> ChatTemplate:
    return ChatTemplate(tokenizer)


@pytest.fixture(scope="session")
def thinking_template() -> ChatTemplate:
    return ChatTemplate(make_tokenizer(OPEN_THINKING))


@pytest.fixture(scope="session")
def encode(tokenizer) -> Callable[[str], tuple[int, ...]]:
    """Ids of a reply with its end token."""
    return lambda text: tuple(tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"])


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    store = Store(tmp_path / "store.sqlite")
    yield store
    store.close()


@dataclass
class FakeEngine:
    """Answers with the scripted replies in turn, the last one for ever: text, ids, a Generation, or an error to raise."""

    encode: Callable[[str], tuple[int, ...]]
    script: list[Any] = field(default_factory=lambda: ["hello"])
    base_url: str = "http://engine"
    is_ready: bool = True
    version: int = 7
    finish: str = "stop"
    seen: list[tuple[tuple[int, ...], dict[str, Any]]] = field(default_factory=list)
    hold: asyncio.Event | None = None
    aborted: list[str | None] = field(default_factory=list)

    async def generate(self, input_ids: Sequence[int], sampling_params: Any, *, rid: str | None = None) -> Generation:
        self.seen.append((tuple(input_ids), dict(sampling_params)))
        if self.hold:
            await self.hold.wait()
        reply = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, Generation):
            return reply
        ids = self.encode(reply) if isinstance(reply, str) else tuple(reply)
        logprobs = tuple(-0.25 - index / 1024 for index in range(len(ids)))
        return Generation(rid or "", ids, logprobs, self.finish, None, self.version, (), len(input_ids), "")

    async def ready(self, timeout_s: float = 10.0) -> bool:
        return self.is_ready

    async def abort(self, rid: str | None = None) -> None:
        self.aborted.append(rid)


@dataclass
class FakeJudge:
    """The judge's HTTP side: answer(task, data) gives the completion's text, or a status code."""

    answer: Callable[[str, dict[str, Any]], str | int]
    requests: list[dict[str, Any]] = field(default_factory=list)

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._handle)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.requests.append(body)
        lines = body["messages"][-1]["content"].splitlines()
        data = json.loads(lines[lines.index("DATA") + 1])
        given = self.answer(data["task"], data)
        if isinstance(given, int):
            return httpx.Response(given, text="refused")
        return httpx.Response(
            200, json={"choices": [{"message": {"role": "assistant", "content": given}, "finish_reason": "stop"}]}
        )


@dataclass
class Door:
    """A proxy with everything behind it, and a client in front."""

    client: httpx.AsyncClient
    store: Store
    engine: FakeEngine
    gate: Gate
    pool: EnginePool
    capture: Capture
    judge: FakeJudge

    async def post(
        self, messages: list[dict[str, Any]], *, headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        return await self.client.post(
            "/v1/chat/completions", json={"model": "student", "messages": messages, **fields}, headers=headers or {}
        )

    async def say(self, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Posts and appends the reply to the messages, as a client does."""
        response = await self.post(messages, **more)
        assert response.status_code == 200, response.text
        message = response.json()["choices"][0]["message"]
        messages.append(message)
        return message


def scripted_votes(task: str, data: dict[str, Any]) -> str:
    """Complaints get -1 and a hint, thanks +1, the rest 0."""
    said = data["next_state"]["text"]
    if task == "hint":
        return f"\\boxed{{1}} [HINT_START]Please mind: {said}[HINT_END]" if "please" in said else "\\boxed{-1}"
    return "\\boxed{-1}" if "please" in said else "\\boxed{1}" if "thank" in said else "\\boxed{0}"


@pytest.fixture
def make_engine(encode) -> Callable[..., FakeEngine]:
    return lambda **fields: FakeEngine(encode, **fields)


@pytest.fixture
def make_judge() -> Callable[..., FakeJudge]:
    return lambda answer=scripted_votes: FakeJudge(answer)


@pytest.fixture
async def open_door(store, template, make_engine, make_judge):
    """Builds proxies; keyword arguments are those of ProxySettings, and engine, judge, capture, ready."""
    doors: list[Door] = []

    async def build(
        *, engine: FakeEngine | None = None, judge: FakeJudge | None = None, capture: CaptureSettings | None = None,
        ready: bool = True, run_capture: bool = True, chat_template: ChatTemplate = template, **fields: Any,
    ) -> Door:  # fmt: skip
        engine, judge = engine or make_engine(), judge or make_judge()
        settings = ProxySettings(**{"context_length": 512, "max_response_tokens": 64, **fields})
        gate, pool = Gate(max_waiting=settings.max_waiting, max_wait_s=settings.max_wait_s), EnginePool([engine])
        client = JudgeClient("http://judge", transport=judge.transport())
        worker = Capture(store, client, chat_template, capture or CaptureSettings(first_retry_s=0.01, sweep_every_s=0.05))
        chat = Chat(settings, store, pool, chat_template, gate, turn_closed=worker.wake)
        app = create_app(chat, status=worker.status)
        if ready:
            await pool.probe()
        if run_capture:
            worker.start()
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
        doors.append(Door(http, store, engine, gate, pool, worker, judge))
        return doors[-1]

    yield build
    for door in doors:
        await door.capture.stop()
        await door.client.aclose()


@pytest.fixture
def make_turn(store, template) -> Callable[..., Turn]:
    """Adds a turn to the store and returns it."""
    numbers = iter(range(10**6))

    def make(*, drop_reason: str | None = None, flags: tuple[str, ...] = (), thinking: bool = True, **fields: Any) -> Turn:
        number = next(numbers)
        session = fields.pop("session_id", None) or store.open_session().session_id
        messages = ({"role": "user", "content": f"task {number}"},)
        values = {
            "turn_id": f"turn{number}",
            "lineage_id": "line",
            "messages": messages,
            "tools": (),
            "reply": {"role": "assistant", "content": "reply"},
            "prompt_ids": template.prompt_ids(messages),
            "response_ids": (4, 5),
            "response_logprobs": (-0.5, -0.1),
            "finish_reason": "stop",
            "weight_version": 0,
            **fields,
        }
        turn = Turn(session_id=session, **values)
        store.add_turn(NewTurn(turn, "reply", f"key{number}", thinking, flags=flags, drop_reason=drop_reason))
        return turn

    return make


@pytest.fixture
def serve_app() -> Iterator[Callable[[FastAPI], str]]:
    """Serves an app on a free port of loopback in a thread; returns its address."""
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []

    def serve(app: FastAPI) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
        thread.start()
        servers.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for server, thread in servers:
        server.should_exit = True
        thread.join(5)


@pytest.fixture
def engine_app(encode) -> Callable[..., FastAPI]:
    """An app with SGLang's /generate body: replies to every prompt with the same text after delay_s."""

    def make(text: str = "hello", *, delay_s: float = 0.0, version: int = 3) -> FastAPI:
        app = FastAPI()

        @app.post("/generate")
        async def generate(request: Request) -> dict[str, Any]:
            body = await request.json()
            limit = body["sampling_params"]["max_new_tokens"]
            if limit > 1:
                await asyncio.sleep(delay_s)
            ids = encode(text)[:limit]
            meta = {
                "id": body.get("rid", "x"), "finish_reason": {"type": "stop"}, "prompt_tokens": len(body["input_ids"]),
                "completion_tokens": len(ids), "weight_version": str(version),
                "output_token_logprobs": [[-0.5, token, None] for token in ids],
            }  # fmt: skip
            return {"text": "", "meta_info": meta}

        return app

    return make


@pytest.fixture
def judge_app(make_judge) -> Callable[..., FastAPI]:
    """The scripted judge over real HTTP; state["up"] False makes it answer 503."""

    def make(state: dict[str, Any] | None = None, answer: Any = scripted_votes) -> FastAPI:
        app, judge = FastAPI(), FakeJudge(answer)

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Any:
            from fastapi.responses import Response

            if state is not None and not state["up"]:
                return Response("down", 503)
            reply = judge._handle(httpx.Request("POST", "http://judge", content=await request.body()))
            return Response(reply.content, reply.status_code, media_type="application/json")

        return app

    return make
