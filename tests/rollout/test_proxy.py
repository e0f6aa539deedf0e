from __future__ import annotations

import asyncio
import json

import pytest

from openclaw_core.rollout.capture import CaptureSettings
from openclaw_core.rollout.engines.client import Generation, VersionSpan
from openclaw_core.rollout.engines.errors import EngineError, EngineTimeout, EngineUnreachable, PromptTooLong

HI = [{"role": "user", "content": "hi"}]
CHAT = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/v1/chat/completions",
    "raw_path": b"",
    "query_string": b"",
    "headers": [(b"content-type", b"application/json")],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 1),
    "scheme": "http",
    "root_path": "",
}


def only_turn(store):
    (record,) = store.turns()
    return record


async def test_a_turn_is_stored_as_it_was_sampled_before_the_reply_is_seen(open_door, template, encode):
    door = await open_door()
    response = await door.post(HI)
    body, record = response.json(), only_turn(door.store)
    assert body["choices"][0] == {
        "index": 0, "message": {"role": "assistant", "content": "hello"}, "logprobs": None, "finish_reason": "stop",
    }  # fmt: skip
    assert record.turn.prompt_ids == template.prompt_ids(HI) == door.engine.seen[0][0]
    assert record.turn.response_ids == encode("hello")
    assert record.turn.response_logprobs == tuple(-0.25 - i / 1024 for i in range(len(encode("hello"))))
    assert (record.turn.weight_version, record.state) == (7, "open")
    assert body["usage"]["completion_tokens"] == len(encode("hello"))
    assert response.headers["x-openclaw-turn-id"] == record.turn.turn_id
    assert body["id"] == f"chatcmpl-{record.turn.turn_id}"


async def test_a_conversation_becomes_samples(open_door, make_engine, template):
    door = await open_door(engine=make_engine(script=["one", "TWO", "three"]))
    messages = list(HI)
    for said in ("please in capitals", "thank you"):
        await door.say(messages, headers={"X-Session-Id": "S"})
        messages.append({"role": "user", "content": said})
    await door.say(messages, headers={"X-Session-Id": "S"})
    assert await door.capture.settle(5)
    first, second = (record.sample for record in door.store.samples())
    assert (first.kind, first.reward, second.kind, second.reward) == ("opd+rl", -1.0, "rl", 1.0)
    hint = "Please mind: please in capitals"
    assert [c.hint.text for c in first.candidates] == [hint]
    assert first.candidates[0].hinted_prompt_ids == template.hinted_prompt_ids(HI, (), hint)
    assert second.candidates[0].hinted_prompt_ids == second.prompt_ids
    funnel = door.store.funnel()
    assert (funnel.received, funnel.main, funnel.answered, funnel.closed, funnel.judged, funnel.hinted, funnel.sampled) == (
        3,
        3,
        3,
        2,
        2,
        1,
        2,
    )
    assert len({record.turn.lineage_id for record in door.store.turns()}) == 1


async def test_streamed_and_plain_replies_are_the_same_record(open_door, make_engine):
    reply = '<think>\nhm\n</think>\n\nI look. <tool_call>{"name": "look", "arguments": {"at": "ü"}}</tool_call>'
    door = await open_door(engine=make_engine(script=[reply]))
    tools = [{"type": "function", "function": {"name": "look"}}]
    plain = (await door.post(HI, tools=tools)).json()["choices"][0]
    response = await door.post(HI, tools=tools, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[-1]["usage"]["total_tokens"] > 0
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    merged = {key: value for delta in deltas for key, value in delta.items()}
    call = merged["tool_calls"][0]
    assert call.pop("index") == 0
    assert (merged["reasoning_content"], merged["content"]) == ("hm", "I look.")
    assert call["function"] == plain["message"]["tool_calls"][0]["function"]
    assert chunks[-2]["choices"][0]["finish_reason"] == plain["finish_reason"] == "tool_calls"
    first, second = door.store.turns()
    assert first.text == second.text
    assert first.flags == second.flags == ()


async def test_a_swallowed_tool_call_is_kept_with_its_flag(open_door, make_engine, thinking_template):
    engine = make_engine(script=['hm <tool_call>{"name": "look", "arguments": {}}</tool_call>'])
    door = await open_door(engine=engine, chat_template=thinking_template)
    for stream in (False, True):
        assert (await door.post(HI, tools=[{"function": {"name": "look"}}], stream=stream)).status_code == 200
    for record in door.store.turns():
        assert "tool_call_in_reasoning" in record.flags
        assert (record.state, record.turn.reply["content"]) == ("open", "")


async def test_too_many_tokens_asked_for_are_clamped_and_said(open_door):
    door = await open_door(max_response_tokens=64, context_length=90)
    response = await door.post(HI, max_completion_tokens=178_220)
    room = 90 - response.json()["usage"]["prompt_tokens"]
    assert response.headers["x-openclaw-max-tokens"] == f"{min(64, room)} (asked 178220)"
    assert door.engine.seen[0][1]["max_new_tokens"] == min(64, room)
    assert only_turn(door.store).request["asked_max_tokens"] == 178_220
    assert "x-openclaw-max-tokens" not in (await door.post(HI, max_tokens=3)).headers


async def test_a_prompt_that_does_not_fit_is_400_with_numbers_and_never_reaches_an_engine(open_door):
    door = await open_door(context_length=40)
    response = await door.post([{"role": "user", "content": "x" * 100}])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "may have 40" in response.json()["error"]["message"]
    assert door.engine.seen == []
    assert (await door.post(HI)).status_code == 200


async def test_sampling_of_captured_turns_is_ours_and_said(open_door):
    door = await open_door(temperature=0.6)
    response = await door.post(HI, temperature=1.7, seed=3)
    assert response.headers["x-openclaw-sampling"].startswith("temperature=0.6")
    assert response.headers["x-openclaw-ignored"] == "seed"
    assert door.engine.seen[0][1]["temperature"] == 0.6
    assert only_turn(door.store).request["asked_sampling"] == {"temperature": 1.7}
    side = await door.post(HI, temperature=0, headers={"X-Turn-Type": "side"})
    assert "x-openclaw-sampling" not in side.headers
    assert door.engine.seen[1][1]["temperature"] == 0


async def test_side_turns_are_answered_and_never_train(open_door):
    door = await open_door()
    messages = list(HI)
    await door.say(messages, headers={"X-Turn-Type": "side", "X-Session-Id": "S"})
    messages.append({"role": "user", "content": "please in capitals"})
    await door.say(messages, headers={"X-Turn-Type": "side", "X-Session-Id": "S"})
    assert [(r.state, r.reason) for r in door.store.turns()] == [("dropped", "side")] * 2
    assert (door.store.funnel().received, door.store.funnel().main) == (2, 0)
    assert (await door.post(HI, headers={"X-Turn-Type": "x"})).status_code == 400


async def test_503_until_a_token_was_generated(open_door, make_engine):
    engine = make_engine(is_ready=False)
    door = await open_door(engine=engine)
    for response in (await door.post(HI), await door.client.get("/health")):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "not_ready"
        assert int(response.headers["retry-after"]) > 0
    engine.is_ready = True
    await door.pool.probe()
    assert (await door.client.get("/health")).json()["status"] == "ready"
    assert (await door.post(HI)).status_code == 200


async def test_a_pause_holds_requests_and_loses_none(open_door):
    door = await open_door(max_waiting=2)
    door.gate.pause()
    tasks = [asyncio.create_task(door.post(HI)) for _ in range(2)]
    while door.gate.waiting < 2:
        await asyncio.sleep(0)
    refused = await door.post(HI)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "paused")
    assert int(refused.headers["retry-after"]) > 0
    door.gate.resume()
    assert [r.status_code for r in await asyncio.gather(*tasks)] == [200, 200]
    assert door.store.funnel().refused == {"paused": 1}


async def test_a_drained_gate_means_that_every_reply_is_stored(open_door, make_engine):
    engine = make_engine(hold=asyncio.Event())
    door = await open_door(engine=engine)
    task = asyncio.create_task(door.post(HI))
    while not engine.seen:
        await asyncio.sleep(0)
    door.gate.pause()
    assert await door.gate.drain(0.01) == 1
    engine.hold.set()
    assert await door.gate.drain(1) == 0
    assert only_turn(door.store).state == "open"
    assert (await task).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (PromptTooLong("too long: 9 > 8", prompt_tokens=9, limit=8), 400, "context_length_exceeded"),
        (EngineError("bad request", status=400), 400, "engine_error"),
        (EngineError("teapot", status=418), 418, "engine_error"),
        (EngineError("not JSON", status=200), 502, "engine_error"),
        (EngineUnreachable("gone"), 503, "not_ready"),
        (EngineError("crash", status=500), 503, "not_ready"),
        (EngineTimeout("slow"), 504, "engine_timeout"),
    ],
)
async def test_engine_errors_keep_their_class(open_door, make_engine, error, status, code):
    door = await open_door(engine=make_engine(script=[error]))
    response = await door.post(HI)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert door.store.funnel().refused == {code: 1}
    assert door.pool.ready == (status < 500 or status == 502)


async def test_an_empty_reply_is_an_error_and_no_invented_text(open_door, make_engine):
    door = await open_door(engine=make_engine(script=["", [], "  \n"]))
    for _ in range(3):
        response = await door.post(HI)
        assert (response.status_code, response.json()["error"]["code"]) == (502, "empty_reply")
    assert door.store.funnel().dropped == {"empty": 3}


async def test_capped_and_aborted_replies(open_door, make_engine):
    door = await open_door(engine=make_engine(finish="length"))
    assert (await door.post(HI)).json()["choices"][0]["finish_reason"] == "length"
    door.engine.finish = "abort"
    response = await door.post(HI)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "aborted")
    assert door.store.funnel().dropped == {"length": 1, "abort": 1}


async def test_ids_past_the_tokenizer_are_never_trained(open_door, make_engine, template, encode):
    door = await open_door(engine=make_engine(script=[(*encode("ok")[:2], template.vocab_size, *encode(""))]))
    assert (await door.post(HI)).json()["choices"][0]["message"]["content"] == "ok"
    assert door.store.funnel().dropped == {"id_out_of_range": 1}


async def test_client_placeholders_are_tagged_and_excluded(open_door):
    door = await open_door()
    messages = list(HI)
    await door.say(messages)
    messages.append({"role": "user", "content": "It says: Agent couldn't generate a response. please"})
    await door.say(messages)
    first, second = door.store.turns()
    assert (first.state, first.reason) == ("dropped", "placeholder_next_state")
    assert first.next_state is not None
    assert (second.state, second.reason) == ("dropped", "placeholder_in_prompt")


async def test_template_drift_is_marked_and_breaks_nothing(open_door, make_engine, tokenizer):
    h, i = tokenizer.convert_tokens_to_ids(["h", "i"])
    door = await open_door(engine=make_engine(script=[(h, i, tokenizer.eos_token_id), "hi", "ok"]))
    messages = list(HI)
    for _ in range(3):
        await door.say(messages)
        messages.append({"role": "user", "content": "on"})
    assert [r.flags for r in door.store.turns()] == [(), ("prompt_drift",), ()]


async def test_the_oldest_weights_of_a_reply_count(open_door, make_engine, encode):
    ids = encode("hello")
    spans = (VersionSpan(4, 0, 2), VersionSpan(5, 2, len(ids)))
    door = await open_door(engine=make_engine(script=[Generation("r", ids, (-0.1,) * len(ids), "stop", None, 5, spans, 3, "")]))
    await door.post(HI)
    record = only_turn(door.store)
    assert (record.turn.weight_version, record.flags) == (4, ("mixed_weights",))


async def test_the_key_names_its_door_and_itself_never(open_door):
    door = await open_door(api_key="sk-right", key_setting="proxy.api_key_env (environment variable KEY)")
    for headers in (
        {},
        {"Authorization": "Bearer sk-wrong"},
        {"Authorization": "Basic sk-right"},
        {"Authorization": "Bearer \u00fc".encode()},
    ):
        for path in ("/v1/models", "/status"):
            response = await door.client.get(path, headers=headers)
            assert response.status_code == 401
            assert (
                "training proxy takes the key of proxy.api_key_env (environment variable KEY)"
                in response.json()["error"]["message"]
            )
            assert "sk-" not in response.text
        assert (await door.post(HI, headers=headers)).status_code == 401
    assert (await door.client.get("/health")).status_code == 200
    assert (await door.post(HI, headers={"Authorization": "Bearer sk-right"})).status_code == 200
    assert door.store.funnel().answered == 1


async def test_web_pages_stay_outside_without_a_key(open_door):
    door = await open_door()
    assert (await door.post(HI, headers={"Origin": "http://evil.example"})).status_code == 403
    simple = await door.client.post("/v1/chat/completions", content="{}", headers={"content-type": "text/plain"})
    assert simple.status_code == 415
    assert door.store.turns() == []


@pytest.mark.parametrize(
    "path",
    [
        "/generate",
        "/update_weights_from_disk",
        "/pause_generation",
        "/flush_cache",
        "/abort_request",
        "/model_info",
        "/server_info",
        "/docs",
        "/openapi.json",
        "/redoc",
        "/v1/completions",
        "/v1/chat/completions/../../generate",
        "/",
    ],
)
async def test_no_other_route_exists(open_door, path):
    door = await open_door()
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert (await door.client.request(method, path, json={})).status_code in (404, 405)
    assert door.engine.seen == []


async def test_bodies_that_cannot_be_read(open_door):
    door = await open_door(max_body_bytes=1000)
    json_type = {"content-type": "application/json"}
    for content, status in ((b"{", 400), (b"\xff", 400), (b"[" * 900, 400), (b" " * 1001, 413), (b"[]", 400)):
        response = await door.client.post("/v1/chat/completions", content=content, headers=json_type)
        assert response.status_code == status, content[:10]
        assert response.json()["error"]["message"]


async def test_models_tell_their_limits(open_door):
    door = await open_door(model="me", aliases=("default",), context_length=512, max_response_tokens=64)
    models = (await door.client.get("/v1/models")).json()["data"]
    assert [m["id"] for m in models] == ["me", "default"]
    assert {(m["context_length"], m["max_output_tokens"]) for m in models} == {(512, 64)}


async def test_status_shows_funnel_gate_engines_and_judge(open_door):
    door = await open_door()
    await door.post(HI)
    status = (await door.client.get("/status")).json()
    assert status["funnel"]["answered"] == 1
    assert status["gate"]["paused"] is False
    assert status["engines"][0]["ready"] is True
    assert status["outage"] is None


async def test_a_client_that_leaves_frees_its_engine(open_door, make_engine):
    engine = make_engine(hold=asyncio.Event())
    door = await open_door(engine=engine)
    sent = []

    async def receive():
        if not sent:
            sent.append(True)
            return {"type": "http.request", "body": json.dumps({"model": "student", "messages": HI}).encode()}
        while not engine.seen:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    await door.client._transport.app(CHAT, receive, send)
    assert len(engine.aborted) == 1
    assert (door.pool.in_flight, door.gate.in_flight) == (0, 0)
    assert door.store.funnel().refused == {"client_gone": 1}


async def test_a_client_that_leaves_while_it_asks_is_counted_and_no_fault(open_door):
    door = await open_door()
    pieces = [{"type": "http.request", "body": b'{"model": ', "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return pieces.pop(0)

    async def send(message):
        pass

    await door.client._transport.app(CHAT, receive, send)
    assert door.store.funnel().refused == {"client_gone": 1}


async def test_a_slow_stream_is_kept_alive(open_door, make_engine):
    engine = make_engine(hold=asyncio.Event())
    door = await open_door(engine=engine, keep_alive_s=0.02)
    asyncio.get_running_loop().call_later(0.1, engine.hold.set)
    response = await door.post(HI, stream=True)
    assert response.text.startswith(": the reply is under way\n\n")
    assert '"content": "hello"' in response.text
    assert response.text.endswith("data: [DONE]\n\n")
    engine.hold, engine.script = asyncio.Event(), [EngineTimeout("slow")]
    asyncio.get_running_loop().call_later(0.05, engine.hold.set)
    late = await door.post(HI, stream=True)
    event = json.loads(late.text.split("\n\n")[-2].removeprefix("data: "))
    assert event["error"]["code"] == "engine_timeout"
    assert door.store.funnel().refused == {"engine_timeout": 1}


async def test_idle_sessions_end(open_door):
    door = await open_door(capture=CaptureSettings(session_idle_s=0.05, sweep_every_s=0.02))
    for _ in range(5):
        await door.post(HI)
    await asyncio.sleep(0.2)
    assert door.store.funnel().dropped == {"no_next_state": 5}


async def test_the_openai_client_is_content(open_door):
    from openai import AsyncOpenAI

    door = await open_door()
    client = AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="none", http_client=door.client, max_retries=0)
    plain = await client.chat.completions.create(model="student", messages=HI, user="U")
    assert plain.choices[0].message.content == "hello"
    stream = await client.chat.completions.create(model="student", messages=HI, stream=True, user="U")
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "hello"
    assert [m.id async for m in client.models.list()][:1] == ["student"]
    assert {door.store.session(r.turn.session_id).id_source for r in door.store.turns()} == {"user"}
