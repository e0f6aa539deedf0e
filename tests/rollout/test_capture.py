from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from openclaw_core.rollout.capture import Capture, CaptureSettings
from openclaw_core.rollout.judge import JudgeClient
from openclaw_core.rollout.store import Store
from openclaw_core.types import SampleKind

QUICK = CaptureSettings(first_retry_s=0.01, longest_retry_s=0.02, sweep_every_s=0.02)
COMPLAINT = ({"role": "user", "content": "please in capitals"},)


@pytest.fixture
async def make_capture(store, template, make_judge):
    made = []

    def make(answer=None, settings=QUICK, **votes):
        judge = make_judge(answer) if answer else make_judge()
        capture = Capture(store, JudgeClient("http://judge", transport=judge.transport(), **votes), template, settings)
        made.append(capture)
        capture.start()
        return capture, judge

    yield make
    for capture in made:
        await capture.stop()


async def test_an_outage_becomes_no_zero_and_loses_nothing(store, make_turn, make_capture):
    up = False

    def answer(task, data):
        return ("\\boxed{-1}" if task == "verdict" else "\\boxed{0}") if up else 503

    capture, _ = make_capture(answer)
    turns = [make_turn() for _ in range(5)]
    for turn in turns:
        store.close_turn(turn.turn_id, COMPLAINT)
    capture.wake()
    await asyncio.sleep(0.3)
    funnel = store.funnel()
    assert (funnel.judged, funnel.sampled, funnel.dropped, len(store.pending_turns())) == (0, 0, {}, 5)
    assert "503" in capture.status()["outage"]
    assert len(store.events(kind="judge_outage")) == 1
    up = True
    assert await capture.settle(5)
    assert [r.sample.reward for r in store.samples()] == [-1.0] * 5
    assert capture.status()["outage"] is None


async def test_what_an_earlier_process_closed_is_judged(store, make_turn, make_capture):
    closed, still_open = make_turn(), make_turn()
    store.close_turn(closed.turn_id, COMPLAINT)
    capture, _ = make_capture()
    assert await capture.settle(5)
    assert store.sample_of_turn(closed.turn_id) is not None
    assert store.turn(still_open.turn_id).state == "open"


async def test_judged_turns_are_dispatched_without_asking_again(store, make_turn, make_capture, monkeypatch):
    turn = make_turn()
    store.close_turn(turn.turn_id, COMPLAINT)
    monkeypatch.setattr(Store, "add_sample", lambda *_: False)
    capture, judge = make_capture()
    while store.turn(turn.turn_id).judged_at is None:
        await asyncio.sleep(0.01)
    await capture.stop()
    assert len(judge.requests) == 6
    monkeypatch.undo()
    capture, judge = make_capture()
    assert await capture.settle(5)
    assert (len(judge.requests), store.funnel().sampled) == (0, 1)


async def test_a_stop_in_the_middle_of_a_vote_loses_nothing(store, make_turn, make_capture):
    class Slow:
        async def judge(self, turn, next_state):
            await asyncio.sleep(60)

    turn = make_turn()
    store.close_turn(turn.turn_id, COMPLAINT)
    capture = Capture(store, Slow(), None, QUICK)
    capture.start()
    await asyncio.sleep(0.05)
    assert capture.status()["judging"] == 1
    await capture.stop()
    assert store.pending_turns() == [turn.turn_id]
    capture, _ = make_capture()
    assert await capture.settle(5)
    assert store.funnel().sampled == 1


async def test_only_so_many_turns_at_once_and_all_of_them_in_the_end(store, make_turn, make_capture, template):
    running = most = 0

    class Counting:
        async def judge(self, turn, next_state):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.002)
            running -= 1
            return []

    for _ in range(20):
        store.close_turn(make_turn().turn_id, COMPLAINT)
    capture = Capture(store, Counting(), template, CaptureSettings(concurrency=3, sweep_every_s=0.02))
    capture.start()
    assert await capture.settle(5)
    await capture.stop()
    assert most == 3
    assert store.funnel().dropped == {"no_valid_vote": 20}


async def test_a_turn_that_only_fails_itself_is_given_up(store, make_turn, make_capture):
    poison = make_turn(reply={"role": "assistant", "content": "poison"})
    store.close_turn(poison.turn_id, COMPLAINT)
    capture, _ = make_capture(lambda task, data: 500 if data["reply"] == "poison" else "\\boxed{1}")
    for _ in range(200):
        store.close_turn(make_turn().turn_id, COMPLAINT)
        capture.wake()
        await asyncio.sleep(0.01)
        if store.turn(poison.turn_id).state == "dropped":
            break
    assert store.turn(poison.turn_id).reason == "judge_failed"
    assert await capture.settle(5)
    assert {r.sample.reward for r in store.samples(limit=1000)} == {1.0}


async def test_one_bad_turn_does_not_end_the_collection(store, make_turn, make_capture):
    bad = make_turn(
        messages=(
            {"role": "assistant", "tool_calls": [{"function": {"name": 3, "arguments": "{}"}}]},
            {"role": "user", "content": "x"},
        )
    )
    good = make_turn()
    for turn in (bad, good):
        store.close_turn(turn.turn_id, COMPLAINT)
    capture, _ = make_capture()
    assert await capture.settle(5)
    assert store.turn(bad.turn_id).reason == "capture_error"
    assert "cannot render" in store.events(kind="capture_error")[0]["detail"]["error"]
    assert store.sample_of_turn(good.turn_id) is not None


async def test_partial_and_empty_votes(store, make_turn, make_capture):
    turns = [make_turn(reply={"role": "assistant", "content": name}) for name in ("half", "none", "zero")]
    counts = {}

    def answer(task, data):
        counts[data["reply"], task] = number = counts.get((data["reply"], task), 0) + 1
        if task == "hint":
            return "\\boxed{-1}"
        return {"half": "\\boxed{-1}" if number == 1 else "hm", "none": "hm", "zero": "\\boxed{0}"}[data["reply"]]

    for turn in turns:
        store.close_turn(turn.turn_id, COMPLAINT)
    capture, _ = make_capture(answer)
    assert await capture.settle(5)
    assert [r.sample.reward for r in store.samples()] == [-1.0]
    assert [store.turn(t.turn_id).reason for t in turns] == [None, "no_valid_vote", "no_signal"]


@pytest.mark.parametrize(("override", "reward"), [(False, 1.0), (True, -1.0)])
async def test_evidence_is_stored_and_overrides_where_it_may(store, make_turn, make_capture, override, reward):
    turn = make_turn()
    store.close_turn(turn.turn_id, ({"role": "tool", "tool_call_id": "c", "content": '{"status": "error"}'},))
    capture, _ = make_capture(lambda *_: "\\boxed{1}", CaptureSettings(guards_override=override), hint_votes=0)
    assert await capture.settle(5)
    assert [v.reason for v in store.votes(turn.turn_id, "guard")] == ["tool_error"]
    assert [r.sample.reward for r in store.samples()] == [reward]


@pytest.mark.parametrize("placement", ["last_user", "system", "message"])
@pytest.mark.parametrize("thinking", [True, False])
async def test_a_candidate_is_the_turns_own_prompt_with_the_hint_where_it_belongs(
    store, template, make_turn, make_capture, placement, thinking
):
    tools = ({"type": "function", "function": {"name": "look", "parameters": {}}},)
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "sort: b a"})
    prompt = template.prompt_ids(messages, tools, thinking=thinking)
    turn = make_turn(messages=messages, tools=tools, prompt_ids=prompt, thinking=thinking)
    store.close_turn(turn.turn_id, COMPLAINT)
    hint = "answer in capitals"

    def answer(task, data):
        return f"\\boxed{{1}} [HINT_START]{hint}[HINT_END]" if task == "hint" else "\\boxed{-1}"

    capture, _ = make_capture(answer, replace(QUICK, hint_placement=placement))
    assert await capture.settle(5)
    sample = store.sample_of_turn(turn.turn_id).sample
    expected = template.hinted_prompt_ids(messages, tools, hint, thinking=thinking, placement=placement)
    assert [candidate.hinted_prompt_ids for candidate in sample.candidates] == [expected]
    assert sample.prompt_ids == prompt
    others = [
        template.hinted_prompt_ids(messages, tools, hint, thinking=not thinking, placement=placement),
        template.hinted_prompt_ids(messages, (), hint, thinking=thinking, placement=placement),
    ]
    assert expected not in others, "thinking and tools can be seen in these ids"


async def test_a_hint_too_long_for_the_teacher_is_told_and_the_turn_goes_on(store, make_turn, make_capture):
    def answer(task, data):
        return "\\boxed{1} [HINT_START]" + "capitals! " * 40 + "[HINT_END]" if task == "hint" else "\\boxed{-1}"

    capture, _ = make_capture(answer, replace(QUICK, teacher_context=120))
    turn = make_turn()
    store.close_turn(turn.turn_id, COMPLAINT)
    capture.wake()
    assert await capture.settle(5)
    sample = store.sample_of_turn(turn.turn_id).sample
    assert sample.kind is SampleKind.RL
    assert sample.candidates[0].hinted_prompt_ids == turn.prompt_ids
    assert [(hint.accepted, hint.reason) for hint in store.hints(turn.turn_id)] == [(False, "too_long_for_teacher")]
    [event] = store.events(kind="too_long_for_teacher")
    assert event["subject"] == turn.turn_id
    assert event["detail"]["tokens"] > event["detail"]["limit"] == 120
