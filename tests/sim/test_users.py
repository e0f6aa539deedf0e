from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from openai import APIStatusError

from openclaw_core.sim.judge import complained_style, corrected, thanked
from openclaw_core.sim.styles import CORRECTIONS, STYLES
from openclaw_core.sim.tasks import EASE, tasks
from openclaw_core.sim.users import Manners, SessionRecord, SimulatedUsers, Statistics


class Endpoint:
    """A chat endpoint that knows all answers, obeys from the given complaint on, and refuses the first requests.

    mistaken: whether what it says in the style is wrong until it is corrected.
    """

    def __init__(self, obeys_after: int = 1, refusals: int = 0, status: int = 503, mistaken: bool = False) -> None:
        self.obeys_after, self.refusals, self.status, self.mistaken = obeys_after, refusals, status, mistaken
        self.talks: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.answers = {}
        for number in range(4):
            stream = tasks("train", seed=number, ease=EASE)
            self.answers |= {task.prompt: task.answer for task in (next(stream) for _ in range(400))}

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Any:
            if self.refusals > 0:
                self.refusals -= 1
                return JSONResponse({"error": {"message": "busy"}}, self.status, headers={"Retry-After": "0.05"})
            body = await request.json()
            assert body["user"] == request.headers["x-session-id"]
            self.talks[body["user"]] = body["messages"]
            message = {"role": "assistant", "content": self.reply(body["messages"])}
            return {
                "id": "x", "object": "chat.completion", "created": 0, "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            }  # fmt: skip

        return app

    def reply(self, messages: list[dict[str, Any]]) -> str:
        said = [m["content"] for m in messages if m["role"] == "user"]
        if thanked("user", said[-1]):
            return "you are welcome"
        last_task = max(i for i, text in enumerate(said) if text in self.answers)
        style = complained_style("user", said[-1])
        answer = self.answers[said[last_task]]
        if corrected("user", said[-1]):
            return STYLES["capitals"].apply(answer)
        if self.mistaken and style:
            return style.apply(f"not {answer}")
        return style.apply(answer) if style and len(said) - 1 - last_task >= self.obeys_after else answer


async def talk(endpoint: Endpoint, enough: int = 6, **manners: Any) -> tuple[Statistics, list[SessionRecord]]:
    """Lets two users talk to the endpoint until `enough` sessions are over."""
    config = uvicorn.Config(endpoint.app(), port=0, log_level="error")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    over: list[SessionRecord] = []

    def finished(record: SessionRecord) -> None:
        over.append(record)
        if len(over) >= enough:
            users.stop()

    url = f"http://127.0.0.1:{port}/v1"
    users = SimulatedUsers(url, preference="capitals", concurrency=2, manners=Manners(**manners), on_session=finished)
    try:
        return await asyncio.wait_for(users.run(), 60), over
    finally:
        server.should_exit = True
        await serving


async def test_users_complain_in_words_and_thank_when_it_is_right() -> None:
    endpoint = Endpoint()
    statistics, over = await talk(endpoint)
    assert statistics.first_replies()
    assert not any(statistics.first_replies())
    for record in over:
        assert record.complaints == record.thanks == len(record.held)
        assert all(record.solved)
        said = [m["content"] for m in endpoint.talks[record.session_id] if m["role"] == "user"]
        assert sum(complained_style("user", text) is STYLES["capitals"] for text in said) == record.complaints
        assert 1 <= len(record.held) <= 3


async def test_users_give_up_after_two_complaints() -> None:
    _, over = await talk(Endpoint(obeys_after=99))
    assert all(record.complaints == 2 * len(record.held) == 2 * record.given_up for record in over)
    assert not any(record.thanks for record in over)


async def test_users_correct_what_is_right_in_manner_and_wrong_in_content() -> None:
    endpoint = Endpoint(mistaken=True)
    _, over = await talk(endpoint)
    for record in over:
        assert record.complaints == 2 * record.thanks == 2 * len(record.held)
        said = [m["content"] for m in endpoint.talks[record.session_id] if m["role"] == "user"]
        assert sum(text in CORRECTIONS for text in said) == len(record.held)
        assert record.given_up == 0


async def test_users_wait_when_the_server_refuses() -> None:
    statistics, over = await talk(Endpoint(refusals=5), enough=2)
    assert statistics.waits == 5
    assert over


@pytest.mark.parametrize(("status", "patience"), [(400, 60.0), (503, 0.2)])
async def test_users_do_not_wait_for_ever_nor_for_what_waiting_cannot_mend(status: int, patience: float) -> None:
    with pytest.raises(ExceptionGroup) as failure:
        await talk(Endpoint(refusals=10_000, status=status), patience_s=patience)
    assert {error.status_code for error in failure.value.exceptions if isinstance(error, APIStatusError)} == {status}


async def test_stop_ends_users_who_wait_for_a_server_that_is_away() -> None:
    users = SimulatedUsers("http://127.0.0.1:9/v1", concurrency=3)
    running = asyncio.create_task(users.run())
    while not users.statistics.waits and not running.done():
        await asyncio.sleep(0.01)
    users.stop()
    statistics = await asyncio.wait_for(running, 60)
    assert statistics.total("replies") == 0


def test_statistics_tell_when_the_preference_held() -> None:
    statistics = Statistics([SessionRecord(str(i), held=[i >= 10, i >= 12]) for i in range(20)])
    assert statistics.sessions_until(0.8, window=5) == 15
    assert statistics.sessions_until(1.0, window=9) is None
    assert statistics.recent_rate(4) == 1.0
    assert Statistics().recent_rate(4) is None
