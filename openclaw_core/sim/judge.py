"""The scripted judge: reads what the user said next, and nothing else, and answers in the judge's text protocol.

It does not know the task's answer or anybody's preference. Each vote is a function of the seed, the turn's data and the
number of the vote, so that a run can be repeated.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from openclaw_core.sim.styles import CORRECTIONS, THANKS, USELESS_HINTS, Style, style_named
from openclaw_core.sim.tasks import WORDINGS

_TASK_OPENINGS = tuple(wording.split("{}")[0].lower() for wordings in WORDINGS.values() for wording in wordings)
_THANK_WORDS = ("thank", "perfect", "great")
_UNPARSABLE = ("I cannot say.", "\\boxed{maybe}", "The reply was read, and so was what came next.")
_TURNS_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """useless_hints: share of hint sets of which one vote holds a hint that asks for nothing. only_useless: every hint
    asks for nothing. unparsable: share of the other votes that can't be parsed. votes: votes of a hint set."""

    useless_hints: float = 0.0
    only_useless: bool = False
    unparsable: float = 0.05
    votes: int = 3
    seed: int = 0


def complained_style(role: str, text: str) -> Style | None:
    """The style a user asks for after a reply, or None: a new task that names a style complains about nothing."""
    if role != "user" or text.strip().lower().startswith(_TASK_OPENINGS):
        return None
    return style_named(text)


def thanked(role: str, text: str) -> bool:
    """Whether the user is content with the reply."""
    lowered = text.strip().lower()
    return role == "user" and (text.strip() in THANKS or lowered.startswith(_THANK_WORDS)) and style_named(text) is None


def corrected(role: str, text: str) -> bool:
    """Whether the user calls the reply's content wrong."""
    return role == "user" and text.strip() in CORRECTIONS


def data_of(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The JSON object behind the line DATA of the last user message, or None."""
    content = next((m.get("content") for m in reversed(messages) if m.get("role") == "user"), None)
    if not isinstance(content, str):
        return None
    lines = content.splitlines()
    for index, line in enumerate(lines[:-1]):
        if line.strip() == "DATA":
            try:
                found = json.loads(lines[index + 1])
            except json.JSONDecodeError:
                return None
            return found if isinstance(found, dict) else None
    return None


class ScriptedJudge:
    """Answers judge prompts; counts the votes of each turn to tell one vote from the next."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self._votes: OrderedDict[str, int] = OrderedDict()

    def answer(self, messages: list[dict[str, Any]]) -> str:
        """One vote: the completion's text. Without readable data it is one that can't be parsed."""
        data = data_of(messages)
        if data is None:
            return "There is no data to read."
        task = str(data.pop("task", ""))
        turn = json.dumps(data, sort_keys=True)
        number = self._next_vote(f"{task} {turn}")
        state = data.get("next_state")
        role, text = (str(state.get("role", "")), str(state.get("text", ""))) if isinstance(state, dict) else ("", "")
        if task == "hint":
            return self._hint(turn, number, complained_style(role, text))
        if self._share(turn, "verdict", number) < self.settings.unparsable:
            return self._one_of(_UNPARSABLE, turn, "verdict", number)
        return self._verdict(role, text)

    def _verdict(self, role: str, text: str) -> str:
        style = complained_style(role, text)
        if style is not None:
            return f"The user asks for another manner: {style.phrases[0]}. \\boxed{{-1}}"
        if corrected(role, text):
            return "The user says that the answer is wrong. \\boxed{-1}"
        if thanked(role, text):
            return "The user is content. \\boxed{1}"
        return "What followed says nothing of the reply. \\boxed{0}"

    def _hint(self, turn: str, number: int, style: Style | None) -> str:
        useless = self._is_useless(turn, number)
        if not useless and self._share(turn, "hint", number) < self.settings.unparsable:
            return self._one_of(_UNPARSABLE, turn, "hint", number)
        if style is None:
            return "There is nothing to improve. \\boxed{-1}"
        hint = self._one_of(USELESS_HINTS if useless or self.settings.only_useless else style.hints(), turn, "wording", number)
        return f"\\boxed{{1}} [HINT_START] {hint} [HINT_END]"

    def _is_useless(self, turn: str, number: int) -> bool:
        chosen = self._share(turn, "useless set", 0) < self.settings.useless_hints
        return chosen and number == int(self._share(turn, "useless vote", 0) * self.settings.votes)

    def _next_vote(self, key: str) -> int:
        digest = hashlib.sha256(key.encode()).hexdigest()
        number = self._votes.pop(digest, 0)
        self._votes[digest] = number + 1
        if len(self._votes) > _TURNS_REMEMBERED:
            self._votes.popitem(last=False)
        return number

    def _share(self, turn: str, purpose: str, number: int) -> float:
        """A number in [0, 1) that only the seed, the turn, the purpose and the vote decide."""
        digest = hashlib.sha256(f"{self.settings.seed}|{purpose}|{number}|{turn}".encode()).digest()
        return int.from_bytes(digest[:7], "big") / 2**56

    def _one_of(self, texts: tuple[str, ...], turn: str, purpose: str, number: int) -> str:
        return texts[int(self._share(turn, f"text of {purpose}", number) * len(texts))]
