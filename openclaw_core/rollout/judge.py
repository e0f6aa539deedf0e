"""Verdict votes and hint votes of a judge behind the OpenAI interface. A failed or unreadable vote is no vote, never a 0."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import httpx

from openclaw_core.errors import UserError
from openclaw_core.rollout.store import Vote, VoteKind
from openclaw_core.rollout.template import text_of
from openclaw_core.types import Message, Turn

HISTORY_MESSAGES = 8
HISTORY_CHARACTERS = 6000
TEXT_CHARACTERS = 12000

_BOXED = re.compile(r"\\boxed\{\s*([^{}]*?)\s*\}")
_HINT = re.compile(r"\[HINT_START\](.*?)\[HINT_END\]", re.DOTALL)
_VALUES = {"1": 1, "+1": 1, "0": 0, "-1": -1}
# Tags of chat templates begin with "<", fences with backticks; the other three end a line for some readers.
_ESCAPES = {"<": "\\u003c", "`": "\\u0060", "\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_TRANSIENT = frozenset({401, 403, 404, 408, 425, 429})


class JudgeDown(UserError):
    """The judge can't be asked now: no connection, no answer in time, an error of its own, or a wrong key or address."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A versioned prompt file; its hash goes into every vote."""

    kind: VoteKind
    text: str
    sha256: str


def load_prompt(kind: VoteKind) -> Prompt:
    data = resources.files("openclaw_core.rollout").joinpath("prompts", f"{kind}.txt").read_bytes()
    return Prompt(kind, data.decode(), hashlib.sha256(data).hexdigest())


class JudgeClient:
    """m verdict votes and m hint votes of a turn, all at once.

    base_url is the address that /v1/chat/completions hangs on (with or without the /v1). A vote kind with 0 votes costs nothing.
    Belongs to the event loop it is used in.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "judge",
        api_key: str | None = None,
        verdict_votes: int = 3,
        hint_votes: int = 3,
        temperature: float = 0.6,
        max_tokens: int = 1024,
        timeout_s: float = 120.0,
        max_connections: int = 64,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.model = model
        self.votes: dict[VoteKind, int] = {"verdict": verdict_votes, "hint": hint_votes}
        self._sampling = {"temperature": temperature, "max_tokens": max_tokens}
        self._prompts = {kind: load_prompt(kind) for kind in self.votes}
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s, connect=min(10.0, timeout_s), pool=None),
            limits=httpx.Limits(max_connections=max_connections, keepalive_expiry=2.0),
            trust_env=False,
            transport=transport,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def judge(self, turn: Turn, next_state: Sequence[Message]) -> list[Vote]:
        """All votes of a closed turn: verdict votes first, each kind in order.

        Raises JudgeDown when every single vote failed for the judge's own sake, so that the turn is to be asked about again.
        """
        asked = [(kind, index) for kind, count in self.votes.items() for index in range(count)]
        work = (self._vote(kind, index, turn, next_state) for kind, index in asked)
        results = await asyncio.gather(*work, return_exceptions=True)
        votes: list[Vote] = []
        down: list[JudgeDown] = []
        for (kind, index), result in zip(asked, results, strict=True):
            if isinstance(result, JudgeDown):
                down.append(result)
                sha256 = self._prompts[kind].sha256
                votes.append(Vote(kind, index, None, reason=f"judge down: {result.what}", prompt_sha256=sha256))
            elif isinstance(result, BaseException):
                raise result
            else:
                votes.append(result)
        if down and len(down) == len(votes):
            raise down[0]
        return votes

    async def probe(self) -> None:
        """Asks about a canned turn; raises UserError when the judge can't be asked or no vote of a kind can be read."""
        turn = Turn("probe", "probe", "probe", ({"role": "user", "content": "What is 2 + 3? Answer with the number alone."},), (),
                    {"role": "assistant", "content": "The answer is 6."}, (), (), (), "stop", 0)  # fmt: skip
        votes = await self.judge(turn, ({"role": "user", "content": "No, that is wrong: it is 5. Add the numbers carefully."},))
        for kind in ("verdict", "hint"):
            mine = [vote for vote in votes if vote.kind == kind]
            if mine and all(vote.value is None for vote in mine):
                raise UserError(
                    f"The judge {self.model} at {self.base_url} gave no readable {kind} vote on a probe ({mine[0].reason}).",
                    "Use a judge that follows the prompt, or raise judge.max_tokens.",
                )

    async def _vote(self, kind: VoteKind, index: int, turn: Turn, next_state: Sequence[Message]) -> Vote:
        began = time.monotonic()
        prompt = self._prompts[kind]
        body = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": prompt.text},
                {"role": "user", "content": data_section(kind, turn, next_state)},
            ],
            **self._sampling,
        }
        text, reason = await self._ask(body)
        value, hint = (None, None) if reason else parse_vote(kind, text)
        if value is None and reason is None:
            reason = "unparsable"
        return Vote(kind, index, value, hint, reason, text, prompt.sha256, round(time.monotonic() - began, 4))

    async def _ask(self, body: dict[str, Any]) -> tuple[str, str | None]:
        """(completion, None), or (whatever came, why it is no vote)."""
        try:
            response = await self._http.post(f"{self.base_url}/v1/chat/completions", json=body)
        except httpx.TimeoutException as error:
            raise JudgeDown(f"{self.base_url} didn't answer in time.") from error
        except httpx.TransportError as error:
            raise JudgeDown(f"{self.base_url} is unreachable ({error or type(error).__name__}).") from error
        if response.status_code >= 500 or response.status_code in _TRANSIENT:
            raise JudgeDown(f"{self.base_url} answered {response.status_code}: {response.text[:200]}")
        if not response.is_success:
            return response.text[:2000], f"http {response.status_code}"
        try:
            choice = response.json()["choices"][0]
            text, finish = choice["message"]["content"] or "", choice.get("finish_reason")
        except (ValueError, KeyError, IndexError, TypeError):
            return response.text[:2000], "not a chat completion"
        return text, "cut at its length" if finish == "length" else None


def parse_vote(kind: VoteKind, completion: str) -> tuple[int | None, str | None]:
    """(value, hint) of a completion: the last boxed value after any reasoning; for hints the last marked text.

    None is no vote. A hint vote of 1 without a marked hint is no vote either.
    """
    _, _, answer = completion.rpartition("</think>")
    if "<think>" in answer:
        return None, None
    boxed = _BOXED.findall(answer)
    value = _VALUES.get(boxed[-1]) if boxed else None
    if kind == "verdict" or value is None:
        return value, None
    hints = _HINT.findall(answer)
    hint = hints[-1].strip() if hints else None
    if value == 1 and not hint:
        return None, None
    return value, hint


def data_section(kind: VoteKind, turn: Turn, next_state: Sequence[Message]) -> str:
    """The turn as data: one JSON object on the line after DATA. Nothing in it can end the fence or forge a chat tag."""
    data = {
        "task": kind,
        "history": history(turn.messages),
        "reply": shorten(render(turn.reply), TEXT_CHARACTERS),
        "next_state": {
            "role": "user" if any(m.get("role") == "user" for m in next_state) else "tool",
            "text": shorten("\n\n".join(render(m) for m in next_state), TEXT_CHARACTERS),
        },
    }
    line = json.dumps(data, ensure_ascii=False)
    for character, escape in _ESCAPES.items():
        line = line.replace(character, escape)
    return f"```\nDATA\n{line}\n```"


def history(messages: Sequence[Message]) -> list[dict[str, str]]:
    """The last few messages before the reply, oldest first, as role and text, within a budget of characters."""
    taken: list[dict[str, str]] = []
    left = HISTORY_CHARACTERS
    for message in reversed(messages[-HISTORY_MESSAGES:]):
        text = shorten(render(message), max(left, 200))
        taken.append({"role": str(message.get("role")), "text": text})
        left -= len(text)
        if left <= 0:
            break
    return taken[::-1]


def render(message: Message) -> str:
    """Content and tool calls of a message, reasoning left out."""
    lines = [text_of(message.get("content"))]
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        lines.append(json.dumps({"tool_call": function.get("name"), "arguments": function.get("arguments")}, ensure_ascii=False))
    return "\n".join(line for line in lines if line)


def shorten(text: str, limit: int) -> str:
    """Head and tail of a text longer than limit characters, with the number left out in between."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
