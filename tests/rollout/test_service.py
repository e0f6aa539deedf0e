from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from openclaw_core.config.schema import Config, ModelSource
from openclaw_core.errors import UserError
from openclaw_core.rollout.capture import CaptureSettings
from openclaw_core.rollout.service import RolloutService, ServiceSettings
from openclaw_core.rollout.settings import ProxySettings
from openclaw_core.rollout.store import Store

CLIENT = httpx.Client(timeout=20, trust_env=False)
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def make_service(tmp_path, folder):
    services = []

    def make(engines, judge, **fields):
        settings = ServiceSettings(ProxySettings(context_length=512, max_response_tokens=64), CaptureSettings(), **fields)
        services.append(
            RolloutService(
                settings, store_path=tmp_path / "s.sqlite", engine_urls=engines, judge_url=judge, tokenizer_folder=folder
            )
        )
        return services[-1]

    yield make
    for service in services:
        service.stop(drain_s=0)


def talk(url, messages, **headers):
    return CLIENT.post(f"{url}/chat/completions", json={"model": "student", "messages": messages}, headers=headers)


def test_the_whole_room_over_real_http(make_service, serve_app, engine_app, judge_app):
    service = make_service([serve_app(engine_app("one")), serve_app(engine_app("one"))], serve_app(judge_app()))
    assert service.start() == service.port > 0
    assert service.wait_ready(10)
    service.probe_judge()
    threads = []
    for number in range(4):

        def converse(number=number):
            messages = list(HI)
            for said in ("please in capitals", "thank you"):
                messages.append(talk(service.url, messages, **{"X-Session-Id": f"s{number}"}).json()["choices"][0]["message"])
                messages.append({"role": "user", "content": said})
            talk(service.url, messages, **{"X-Session-Id": f"s{number}"})

        threads.append(threading.Thread(target=converse))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert service.settle(10)
    samples = service.store.take_batch(8, 8, 3)
    assert sorted((s.kind, s.reward, s.weight_version) for s in samples) == [("opd+rl", -1.0, 3)] * 4 + [("rl", 1.0, 3)] * 4
    status = service.status()
    assert status["funnel"]["answered"] == 12
    assert len(status["engines"]) == 2


def test_pause_drains_holds_and_resumes(make_service, serve_app, engine_app, judge_app):
    service = make_service([serve_app(engine_app(delay_s=0.3))], serve_app(judge_app()))
    service.start()
    assert service.wait_ready(10)
    codes = []
    first = threading.Thread(target=lambda: codes.append(talk(service.url, HI).status_code))
    first.start()
    while service.status()["gate"]["in_flight"] == 0:
        time.sleep(0.01)
    assert service.pause(drain_s=0.01) == 1
    assert service.pause(drain_s=10) == 0
    assert service.store.funnel().answered == 1
    second = threading.Thread(target=lambda: codes.append(talk(service.url, HI).status_code))
    second.start()
    while service.status()["gate"]["waiting"] == 0:
        time.sleep(0.01)
    service.set_weight_version(4)
    service.resume()
    first.join()
    second.join()
    assert codes == [200, 200]
    assert service.status()["weight_version"] == 4


def test_stop_waits_for_the_reply_under_way_and_says_what_it_cut(make_service, serve_app, engine_app, judge_app, tmp_path):
    service = make_service([serve_app(engine_app(delay_s=0.3))], serve_app(judge_app({"up": False})))
    service.start()
    assert service.wait_ready(10)
    answers = []
    messages = [*HI, talk(service.url, HI).json()["choices"][0]["message"], {"role": "user", "content": "please"}]
    thread = threading.Thread(target=lambda: answers.append(talk(service.url, messages)))
    thread.start()
    while service.status()["gate"]["in_flight"] == 0:
        time.sleep(0.01)
    stopped = service.stop(drain_s=10)
    thread.join()
    assert answers[0].status_code == 200
    assert (stopped.cut_requests, stopped.unjudged_turns) == (0, 1)
    store = Store(tmp_path / "s.sqlite")
    assert (store.funnel().answered, len(store.pending_turns())) == (2, 1)


def test_what_is_not_done_in_time_is_cut_and_counted(make_service, serve_app, engine_app, judge_app, tmp_path):
    service = make_service([serve_app(engine_app(delay_s=3.0))], serve_app(judge_app()))
    service.start()
    assert service.wait_ready(10)
    codes = []

    def post():
        try:
            codes.append(talk(service.url, HI).status_code)
        except httpx.TransportError:
            codes.append(None)

    thread = threading.Thread(target=post)
    thread.start()
    while service.status()["gate"]["in_flight"] == 0:
        time.sleep(0.01)
    began = time.monotonic()
    assert service.stop(drain_s=0.05).cut_requests == 1
    assert time.monotonic() - began < 2.5
    thread.join()
    assert codes != [200]
    assert Store(tmp_path / "s.sqlite").events(kind="service_stopped")[0]["detail"] == {"cut_requests": 1, "unjudged_turns": 0}
    with pytest.raises(UserError, match="not running"):
        service.status()


def test_a_restart_on_the_same_store_goes_on(make_service, serve_app, engine_app, judge_app):
    state = {"up": False}
    engine, judge = serve_app(engine_app()), serve_app(judge_app(state))
    first = make_service([engine], judge)
    first.start()
    assert first.wait_ready(10)
    messages = [*HI, talk(first.url, HI).json()["choices"][0]["message"], {"role": "user", "content": "please in capitals"}]
    reply = talk(first.url, messages).json()["choices"][0]["message"]
    first.stop()
    state["up"] = True
    second = make_service([engine], judge)
    second.start()
    assert second.wait_ready(10)
    assert talk(second.url, [*messages, reply, {"role": "user", "content": "thank you"}]).status_code == 200
    assert second.settle(10)
    assert [r.sample.reward for r in second.store.samples()] == [-1.0, 1.0]


def test_it_binds_before_any_engine_is_there(make_service):
    service = make_service(["http://127.0.0.1:9"], "http://127.0.0.1:9")
    service.start()
    response = talk(service.url, HI)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
    assert not service.wait_ready(0.1)
    with pytest.raises(UserError, match="unreachable"):
        service.probe_judge()


def test_taken_ports_and_open_doors_are_refused(make_service):
    with socket.create_server(("127.0.0.1", 0)) as other:
        service = make_service([], "http://127.0.0.1:9", port=other.getsockname()[1])
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1:\d+ \(Address already in use\)"):
            service.start()
    with pytest.raises(UserError, match=r"listen on 0\.0\.0\.0 without a key"):
        make_service([], "http://127.0.0.1:9", host="0.0.0.0")
    with pytest.raises(UserError, match="not running"):
        service.status()


SERVE = """
import sys, time
from openclaw_core.rollout.capture import CaptureSettings
from openclaw_core.rollout.service import RolloutService, ServiceSettings
from openclaw_core.rollout.settings import ProxySettings

store, engine, judge, folder = sys.argv[1:]
settings = ServiceSettings(ProxySettings(context_length=512, max_response_tokens=64), CaptureSettings())
service = RolloutService(settings, store_path=store, engine_urls=[engine], judge_url=judge, tokenizer_folder=folder)
service.start()
assert service.wait_ready(30)
print(service.url, flush=True)
time.sleep(600)
"""


def test_a_killed_service_loses_no_turn_and_judges_none_twice(make_service, serve_app, engine_app, judge_app, tmp_path, folder):
    state, store_path = {"up": True}, tmp_path / "s.sqlite"
    engine, judge = serve_app(engine_app()), serve_app(judge_app(state))
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, store_path, engine, judge, folder], stdout=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().strip()
        conversations = []
        for number in range(4):
            messages = list(HI)
            for said in ("thank you", "please in capitals"):
                messages.append(talk(url, messages, **{"X-Session-Id": f"s{number}"}).json()["choices"][0]["message"])
                messages.append({"role": "user", "content": said})
            conversations.append(messages)
        reader = Store(store_path, read_only=True)
        while reader.funnel().sampled < 4:
            time.sleep(0.02)
        state["up"] = False
        messages = conversations[0]
        messages.append(talk(url, messages, **{"X-Session-Id": "s0"}).json()["choices"][0]["message"])
        messages.append({"role": "user", "content": "thank you"})
        process.kill()
    assert (reader.funnel().answered, reader.funnel().sampled, len(reader.pending_turns())) == (9, 4, 1)
    state["up"] = True
    service = make_service([engine], judge)
    service.start()
    assert service.wait_ready(10)
    for number, messages in enumerate(conversations):
        assert talk(service.url, messages, **{"X-Session-Id": f"s{number}"}).status_code == 200
    assert service.settle(10)
    samples = service.store.take_batch(9, 8, 3)
    assert len({s.turn_id for s in samples}) == 9
    assert sorted(s.reward for s in samples) == [-1.0] * 4 + [1.0] * 5
    assert len({r.turn.lineage_id for r in service.store.turns()}) == 4


def config(**sections) -> Config:
    return Config(student=ModelSource(hf="x"), **sections)


def test_votes_that_no_term_reads_are_not_asked_for():
    def votes(**loss):
        settings = ServiceSettings.from_config(config(loss=loss), {})
        return settings.verdict_votes, settings.hint_votes

    assert votes() == (3, 3)
    assert votes(w_opd=0) == (3, 0)
    assert votes(w_rl=0) == (0, 3)
    assert votes(w_rl=0, opd_on_rl_only="anchor") == (3, 3)


@pytest.mark.parametrize(
    ("configured", "positions", "limit"), [(None, None, None), (None, 500, 500), (300, 500, 300), (900, 500, 500)]
)
def test_the_teachers_context_is_the_shorter_of_config_and_model(configured, positions, limit):
    made = config(rollout={"teacher_context_length": configured}, loss={"opd_on_rl_only": "anchor"})
    settings = ServiceSettings.from_config(made, {}, teacher_positions=positions).capture
    assert (settings.teacher_context, settings.anchored) == (limit, True)


def test_keys_come_from_the_environment_alone():
    settings = ServiceSettings.from_config(
        config(proxy={"api_key_env": "KEY"}, judge={"api_key_env": "KEY"}), {"KEY": "sk-secret"}
    )
    assert settings.proxy.api_key == settings.judge_api_key == "sk-secret"
    assert "sk-secret" not in repr(settings)
    with pytest.raises(UserError, match="KEY, which is not set"):
        ServiceSettings.from_config(config(proxy={"api_key_env": "KEY"}), {})
