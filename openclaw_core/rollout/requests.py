"""Reads a chat request: every field is used, refused with a reason, or named as left out. None is ignored in silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_core.rollout.settings import ProxySettings
from openclaw_core.types import Message

USED = frozenset({
    "model", "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "user",
    "temperature", "top_p", "top_k", "chat_template_kwargs",
})  # fmt: skip
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stop": ([], ""), "logprobs": (False,), "top_logprobs": (0,), "logit_bias": ({},), "presence_penalty": (0,),
    "frequency_penalty": (0,), "repetition_penalty": (1,), "min_p": (0,), "min_tokens": (0,), "ignore_eos": (False,),
    "response_format": ({"type": "text"},), "functions": ([],), "function_call": ("none", "auto"), "modalities": (["text"],),
    "audio": (), "prediction": (), "web_search_options": (),
}  # fmt: skip
"""Fields that would change the reply: refused unless null or one of these values, which ask for nothing."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class ApiError(Exception):
    """An answer other than 200, in OpenAI's shape. headers go out with it."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that can be served. max_tokens is what was asked for, None where nothing was."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    stream: bool
    include_usage: bool
    max_tokens: int | None
    user: str | None
    thinking: bool | None
    sampling: dict[str, float]
    left_out: tuple[str, ...]


def parse_chat_request(body: Any, settings: ProxySettings) -> ChatRequest:
    """Raises ApiError 400 or 404 with the field's name and what is accepted."""
    if not isinstance(body, dict):
        raise _bad("The body must be a JSON object.", None)
    _refuse_unencodable(body)
    model = _model(body.get("model"), settings)
    if body.get("n") not in (None, 1):
        raise _bad(f"n is {body['n']!r}: one reply per request.", "n")
    for name, neutral in NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise _bad(f"{name} would change how replies are sampled and is not supported: leave it out.", name)
    tools = _tools(body)
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _bad("stream_options must be an object.", "stream_options")
    left_out = sorted(name for name, value in body.items() if name not in USED and name not in NEUTRAL and value is not None)
    return ChatRequest(
        model=model,
        messages=_messages(body.get("messages")),
        tools=tools,
        stream=_boolean(body.get("stream"), "stream"),
        include_usage=_boolean(options.get("include_usage"), "stream_options.include_usage"),
        max_tokens=_max_tokens(body),
        user=_text(body.get("user"), "user"),
        thinking=_thinking(body.get("chat_template_kwargs")),
        sampling=_sampling(body),
        left_out=tuple(left_out),
    )


def _bad(message: str, param: str | None) -> ApiError:
    return ApiError(400, "invalid_value", message, param=param)


def _refuse_unencodable(value: Any) -> None:
    """Lone surrogates are legal in JSON escapes and in no encoding that a tokenizer or a store takes."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _bad(f"The body holds text that is not Unicode ({error.reason}).", None) from error
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_unencodable(key)
            _refuse_unencodable(item)
    elif isinstance(value, list):
        for item in value:
            _refuse_unencodable(item)


def _model(name: Any, settings: ProxySettings) -> str:
    known = (settings.model, *settings.aliases)
    if name not in known:
        raise ApiError(404, "model_not_found", f"There is no model {name!r} here; there is {', '.join(known)}.", param="model")
    return settings.model


def _boolean(value: Any, param: str) -> bool:
    if value not in (None, True, False):
        raise _bad(f"{param} must be true or false, not {value!r}.", param)
    return bool(value)


def _text(value: Any, param: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _bad(f"{param} must be text, not {value!r}.", param)
    return value or None


def _number(value: Any, param: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise _bad(f"{param} must be a number from {low:g} to {high:g}, not {value!r}.", param)
    return value


def _max_tokens(body: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _bad(f"{name} must be a whole number of at least 1, not {value!r}.", name)
            return value
    return None


def _sampling(body: dict[str, Any]) -> dict[str, float]:
    bounds = {"temperature": (0, 2), "top_p": (0, 1), "top_k": (-1, 2**31)}
    return {name: _number(body[name], name, *bounds[name]) for name in bounds if body.get(name) is not None}


def _thinking(kwargs: Any) -> bool | None:
    if kwargs is None:
        return None
    unknown = sorted(set(kwargs) - {"enable_thinking"}) if isinstance(kwargs, dict) else ["(not an object)"]
    if unknown:
        raise _bad(f"chat_template_kwargs knows enable_thinking alone, not {', '.join(unknown)}.", "chat_template_kwargs")
    value = kwargs.get("enable_thinking")
    return None if value is None else _boolean(value, "chat_template_kwargs.enable_thinking")


def _tools(body: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise _bad(f"tool_choice {choice!r} is not supported: auto or none.", "tool_choice")
    if not _all_functions(tools):
        raise _bad("tools must be a list of objects with a function.", "tools")
    return () if choice == "none" else tuple(tools)


def _messages(messages: Any) -> tuple[Message, ...]:
    if not isinstance(messages, list) or not messages:
        raise _bad("messages must be a list with at least one message.", "messages")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))


def _message(message: Any, param: str) -> Message:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise _bad(f"{param} must be an object with a role of {', '.join(sorted(ROLES))}.", param)
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise _bad(f"{param}.content has a part that is not text; this model reads text alone.", f"{param}.content")
    elif content is not None and not isinstance(content, str):
        raise _bad(f"{param}.content must be text or a list of text parts.", f"{param}.content")
    elif content is None and message["role"] != "assistant":
        raise _bad(f"{param}.content is missing.", f"{param}.content")
    calls = message.get("tool_calls")
    if calls is not None and not _all_functions(calls):
        raise _bad(f"{param}.tool_calls must be a list of objects with a function.", f"{param}.tool_calls")
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _all_functions(entries: Any) -> bool:
    return isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("function"), dict) for entry in entries
    )
