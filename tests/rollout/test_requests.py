from __future__ import annotations

import pytest

from openclaw_core.rollout.requests import NEUTRAL, ApiError, parse_chat_request
from openclaw_core.rollout.settings import ProxySettings

SETTINGS = ProxySettings(model="student", aliases=("default",))
GOOD = {"model": "student", "messages": [{"role": "user", "content": "hi"}]}


def parse(**fields):
    return parse_chat_request({**GOOD, **fields}, SETTINGS)


def test_what_is_read():
    request = parse(
        model="default", max_tokens=3, max_completion_tokens=5, user="U", stream=True, stream_options={"include_usage": True},
        temperature=0, chat_template_kwargs={"enable_thinking": False}, tools=[{"type": "function", "function": {"name": "f"}}],
    )  # fmt: skip
    assert (request.model, request.max_tokens, request.user, request.stream, request.include_usage) == (
        "student",
        5,
        "U",
        True,
        True,
    )
    assert (request.sampling, request.thinking, len(request.tools)) == ({"temperature": 0}, False, 1)
    assert parse(tools=[{"function": {"name": "f"}}], tool_choice="none").tools == ()
    assert parse(messages=[{"role": "developer", "content": "d"}]).messages == ({"role": "system", "content": "d"},)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0]"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages[0].tool_calls"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": "high"}, "top_p"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": [{}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 3}, "stream_options"),
        ({"user": 3}, "user"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"user": "\ud800"}, None),
        ({"extra": [{"\udfff": 1}]}, None),
        *(({name: "something else"}, name) for name in NEUTRAL),
    ],
)
def test_what_is_refused(fields, param):
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert (error.value.status, error.value.param) == (400, param)


def test_neutral_values_and_nulls_pass():
    for name, values in NEUTRAL.items():
        for value in (*values, None):
            assert parse(**{name: value}).left_out == ()


def test_everything_else_is_named():
    assert parse(store=False, seed=3, metadata={"a": 1}, service_tier=None).left_out == ("metadata", "seed", "store")


@pytest.mark.parametrize("model", ["", "gpt", None, 3, ["student"]])
def test_unknown_models_get_the_list(model):
    with pytest.raises(ApiError, match="student, default") as error:
        parse(model=model)
    assert error.value.status == 404


@pytest.mark.parametrize("body", [[], "x", 3, None])
def test_bodies_that_are_no_objects(body):
    with pytest.raises(ApiError, match="JSON object"):
        parse_chat_request(body, SETTINGS)
