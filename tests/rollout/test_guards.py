from __future__ import annotations

import json

import pytest

from openclaw_core.rollout.guards import guard_votes
from openclaw_core.types import Turn


def call(name, arguments):
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": name, "arguments": arguments}}]}


def result(text):
    return {"role": "tool", "tool_call_id": "c", "content": text}


def fired(reply, next_state, messages=({"role": "user", "content": "x"},)):
    turn = Turn("t", "s", "l", tuple(messages), (), reply, (), (), (), "stop", 0)
    return [vote.reason for vote in guard_votes(turn, next_state)]


@pytest.mark.parametrize(
    ("content", "guards"),
    [
        ({"status": "error", "message": "no"}, ["tool_error"]),
        ({"status": "Failed"}, ["tool_error"]),
        ({"isError": True}, ["tool_error"]),
        ({"success": False}, ["tool_error"]),
        ({"error": "no such file"}, ["tool_error"]),
        ({"error": None, "status": "ok", "isError": False}, []),
        ({"text": "status: error"}, []),
        (["error"], []),
        ("error", []),
    ],
)
def test_failed_tools(content, guards):
    assert fired(call("edit", "{}"), [result(json.dumps(content))]) == guards
    assert fired(call("edit", "{}"), [result("ok"), result(json.dumps(content))]) == guards
    assert fired(call("edit", "{}"), [{"role": "user", "content": json.dumps(content)}]) == []


def test_text_that_is_no_json_is_no_evidence():
    assert fired(call("edit", "{}"), [result("error: {")]) == []


def test_a_call_repeated_to_no_effect():
    before = ({"role": "user", "content": "x"}, call("read", '{"a": 1}'), result("same"))
    assert fired(call("read", '{"a":1}'), [result("same")], before) == ["repeated_call"]
    assert fired(call("read", '{"a":1}'), [result("other")], before) == []
    assert fired(call("read", '{"a":2}'), [result("same")], before) == []
    assert fired(call("read", '{"a":1}'), [{"role": "user", "content": "same"}], before) == []
    assert fired({"role": "assistant", "content": "same"}, [result("same")], before) == []


def test_polling_tools_may_ask_again():
    before = ({"role": "user", "content": "x"}, call("process_poll", "{}"), result("running"))
    assert fired(call("process_poll", "{}"), [result("running")], before) == []
