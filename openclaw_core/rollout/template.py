"""Chat template: messages to prompt ids, plain or with a hint, and reply ids to an OpenAI message.

Each turn is its own sample with the prompt the engine really got: templates that drop earlier reasoning make a later prompt not
extend an earlier one, and nothing here asks that it does.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from openclaw_core.errors import UserError
from openclaw_core.types import Message

HINT_FORMAT = "\n\n[user's hint / instruction]\n{hint}"
"""What a hint looks like to the teacher, wherever it is placed."""

HintPlacement = Literal["last_user", "system", "message"]

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
LONG_CHARACTERS = 20_000
T = TypeVar("T")
MARKERS = frozenset((THINK_OPEN, THINK_CLOSE, CALL_OPEN, CALL_CLOSE))
_CALL = re.compile(re.escape(CALL_OPEN) + r"\s*(.*?)\s*" + re.escape(CALL_CLOSE), re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply as an OpenAI message, its whole text, and what was odd about it.

    flags: tool_call_in_reasoning, malformed_tool_call, unfinished_reasoning, special_token_in_reply, id_out_of_range, empty.
    """

    message: Message
    text: str
    flags: tuple[str, ...]


class ChatTemplate:
    """The student's tokenizer and chat template. Safe to use from several threads.

    thinking is passed to the template as enable_thinking unless a call says otherwise.
    """

    def __init__(self, tokenizer: Any, *, thinking: bool = True) -> None:
        if not tokenizer.chat_template:
            raise UserError(f"The tokenizer {tokenizer.name_or_path!r} has no chat template.", "Use a chat model's folder.")
        self.tokenizer = tokenizer
        self.thinking = thinking
        self.vocab_size = len(tokenizer)
        special = set(tokenizer.all_special_ids)
        self._hidden_ids = frozenset(i for i in special if tokenizer.convert_ids_to_tokens(i) not in MARKERS)
        self._verbatim_arguments = "arguments is string" in str(tokenizer.chat_template)

    @classmethod
    def from_folder(cls, folder: str | Path, *, thinking: bool = True) -> ChatTemplate:
        """Reads the tokenizer of a Hugging Face folder, from disk alone and without running its code."""
        from transformers import AutoTokenizer

        if not Path(folder).is_dir():
            raise UserError(f"There is no tokenizer folder {folder}.", "Give the student's Hugging Face folder.")
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise UserError(f"The tokenizer of {folder} cannot be read: {error}", "Give a complete folder.") from error
        return cls(tokenizer, thinking=thinking)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        *,
        thinking: bool | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """The prompt's text, by default with the generation prompt. Raises UserError when the template refuses the messages."""
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(
                [self._for_template(message) for message in messages],
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                enable_thinking=self.thinking if thinking is None else thinking,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise UserError(f"The chat template cannot render these messages: {error}", "Check their roles and order.") from error

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, thinking: bool | None = None
    ) -> tuple[int, ...]:
        """Ids of the whole conversation rendered once, ready for the engine."""
        text = self.render(messages, tools, thinking=thinking)
        return self._ids(text)

    def hinted_prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        hint: str,
        *,
        thinking: bool | None = None,
        placement: HintPlacement = "last_user",
        prompt_ids: Sequence[int] = (),
    ) -> tuple[int, ...]:
        """Ids of the same prompt with the hint in it; tools, thinking and the generation prompt are as they were.

        Raises UserError where the template ends this prompt, or the turn's own prompt_ids, in another way than the plain one:
        the reply would then go on from something else than what the student saw.
        """
        ids = self.prompt_ids(with_hint(messages, hint, placement), tools, thinking=thinking)
        suffix = self.generation_suffix(messages, tools, thinking=thinking)
        if any(tuple(found[-len(suffix) :]) != suffix for found in (ids, prompt_ids or ids)):
            raise UserError(
                f"With a hint (placement {placement!r}) the prompt doesn't end as the student's own does.",
                "Choose another rollout.hint_placement, or a template whose generation prompt is always the same.",
            )
        return ids

    def generation_suffix(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, thinking: bool | None = None
    ) -> tuple[int, ...]:
        """Ids of what the template puts behind the messages for the reply to begin. Raises UserError where that is nothing."""
        whole, bare = (self.render(messages, tools, thinking=thinking, generation_prompt=flag) for flag in (True, False))
        if not whole.startswith(bare) or whole == bare:
            raise UserError("The chat template has no generation prompt behind the messages.", "Use a chat model's template.")
        return self._ids(whole[len(bare) :])

    def parse_reply(
        self, response_ids: Sequence[int], prompt_ids: Sequence[int], *, turn_id: str, has_tools: bool = False
    ) -> ParsedReply:
        """Derives message and text from the ids. Nothing is added: what isn't in the ids isn't in the message.

        Special tokens (the end of the turn) leave the text; ids past the tokenizer are flagged and left out. Tool calls are read
        only where the request has tools, after the reasoning, and only if they are well formed; others stay in the content.
        """
        flags: list[str] = []
        visible = [i for i in response_ids if i not in self._hidden_ids and 0 <= i < self.vocab_size]
        if any(not 0 <= i < self.vocab_size for i in response_ids):
            flags.append("id_out_of_range")
        if any(i in self._hidden_ids for i in response_ids[:-1]):
            flags.append("special_token_in_reply")
        text = self.tokenizer.decode(visible, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if not text.strip():
            flags.append("empty")
        reasoning, content = _split_reasoning(text, self._opens_thinking(prompt_ids), flags)
        calls: list[dict[str, Any]] = []
        if has_tools:
            content, calls = _split_tool_calls(content, turn_id, flags)
        message: Message = {"role": "assistant", "content": content}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
            message["content"] = content.strip() or None
        return ParsedReply(message, text, tuple(flags))

    def _ids(self, text: str) -> tuple[int, ...]:
        # verbose: the tokenizer would warn of its own model_max_length, where the proxy's context length decides.
        return tuple(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _opens_thinking(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the template itself opened the reasoning, so that the reply has only its end."""
        return self.tokenizer.decode(list(prompt_ids[-8:]), skip_special_tokens=False).rstrip().endswith(THINK_OPEN)

    def _for_template(self, message: Message) -> Message:
        """Plain text in place of parts, for templates take any other content for none; arguments as the template wants them."""
        plain = {**message, "content": text_of(message.get("content"))}
        if message.get("tool_calls") and not self._verbatim_arguments:
            plain["tool_calls"] = [_with_parsed_arguments(call) for call in message["tool_calls"]]
        return plain


async def off_loop(messages: Sequence[Message], work: Callable[[], T]) -> T:
    """work(), in a thread where the messages are long: rendering and tokenising 25,000 tokens takes a fifth of a second."""
    characters = sum(len(text_of(message.get("content"))) for message in messages)
    return work() if characters <= LONG_CHARACTERS else await asyncio.to_thread(work)


def text_of(content: Any) -> str:
    """Text of a message's content: a string, a list of text parts (joined by line breaks), or nothing."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part.get("type") == "text")


def with_hint(messages: Sequence[Message], hint: str, placement: HintPlacement = "last_user") -> list[Message]:
    """The messages with the hint in them.

    last_user: appended to the last user message. system: appended to the system message, which is made where there is none.
    message: a user message of its own right behind the last user message, so before tool results and earlier steps of the
    same turn: templates that keep reasoning since the last user message keep all of it. last_user and message add one at the
    end where no user has spoken.
    """
    suffix = HINT_FORMAT.format(hint=hint.strip())
    alone = suffix.lstrip("\n")
    if placement == "system":
        if messages and messages[0].get("role") == "system":
            return [_appended(messages[0], suffix), *messages[1:]]
        return [{"role": "system", "content": alone}, *messages]
    last = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].get("role") == "user"), None)
    if last is None:
        return [*messages, {"role": "user", "content": alone}]
    if placement == "message":
        return [*messages[: last + 1], {"role": "user", "content": alone}, *messages[last + 1 :]]
    return [*messages[:last], _appended(messages[last], suffix), *messages[last + 1 :]]


def _appended(message: Message, suffix: str) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": _append_to_parts(content, suffix)}
    return {**message, "content": (content or "") + suffix}


def _append_to_parts(parts: list[dict[str, Any]], suffix: str) -> list[dict[str, Any]]:
    """Appends to the last text part, so that parts and plain text give the same prompt."""
    for index in range(len(parts) - 1, -1, -1):
        if parts[index].get("type") == "text":
            return [*parts[:index], {**parts[index], "text": parts[index]["text"] + suffix}, *parts[index + 1 :]]
    return [*parts, {"type": "text", "text": suffix.lstrip("\n")}]


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _split_reasoning(text: str, opened: bool, flags: list[str]) -> tuple[str | None, str]:
    """(reasoning or None, content). Reasoning that never ends leaves no content."""
    begins = text.lstrip().startswith(THINK_OPEN)
    if not opened and not begins:
        return None, text
    body = text.lstrip()[len(THINK_OPEN) :] if begins else text
    reasoning, close, content = body.partition(THINK_CLOSE)
    if not close:
        flags.append("unfinished_reasoning")
    if CALL_OPEN in reasoning and not close:
        flags.append("tool_call_in_reasoning")
    return reasoning.strip("\n"), content.lstrip("\n")


def _split_tool_calls(content: str, turn_id: str, flags: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """(content without its well-formed calls, calls)."""
    calls: list[dict[str, Any]] = []

    def take(match: re.Match[str]) -> str:
        try:
            call = json.loads(match[1])
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, TypeError, KeyError):
            name, arguments = None, None
        if not isinstance(name, str) or not isinstance(arguments, (dict, str)):
            flags.append("malformed_tool_call")
            return match[0]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        call_id = f"call_{turn_id[:24]}{len(calls)}"
        calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": text}})
        return ""

    rest = _CALL.sub(take, content)
    if CALL_OPEN in rest and "malformed_tool_call" not in flags:
        flags.append("malformed_tool_call")
    return rest, calls
