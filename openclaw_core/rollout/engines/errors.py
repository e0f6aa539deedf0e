"""What can go wrong at an engine. A status of the engine is kept as it came: a 4xx never turns into a 5xx."""

from __future__ import annotations

import re
from typing import ClassVar

from openclaw_core.errors import UserError

_TOO_LONG = (
    re.compile(r"input \((?P<prompt>\d+) tokens\) is longer than .* context length \((?P<limit>\d+) tokens\)"),
    re.compile(r"Input length \((?P<prompt>\d+) tokens\) exceeds the maximum allowed length \((?P<limit>\d+) tokens\)"),
    re.compile(
        r"maximum context length of (?P<limit>\d+) tokens\..*?(?P<prompt>\d+) tokens from the input messages"
        r" and (?P<new>\d+) tokens for the completion",
        re.S,
    ),
)


class EngineError(UserError):
    """An engine refused or failed. status is the HTTP status, or None when there was no answer; text is the engine's own."""

    def __init__(self, what: str, remedy: str = "", *, status: int | None = None, text: str = "") -> None:
        super().__init__(what, remedy)
        self.status = status
        self.text = text


class EngineBusy(EngineError):
    """429 or 503: try again, after retry_after seconds where the engine said so."""

    def __init__(self, what: str, *, status: int, text: str, retry_after: float | None = None) -> None:
        super().__init__(what, "Try again later.", status=status, text=text)
        self.retry_after = retry_after


class EngineUnreachable(EngineError):
    """No connection, or one that closed before the answer came."""


class EngineTimeout(EngineError):
    """The engine didn't answer within the time limit of the call."""


class PromptTooLong(EngineError):
    """400 for a request that doesn't fit: prompt_tokens (+ new_tokens, where that was asked for) against limit."""

    def __init__(self, what: str, *, prompt_tokens: int, limit: int, new_tokens: int | None = None, text: str = "") -> None:
        super().__init__(what, "Shorten the prompt or ask for fewer new tokens.", status=400, text=text)
        self.prompt_tokens = prompt_tokens
        self.limit = limit
        self.new_tokens = new_tokens


class SwapError(EngineError):
    """A weight swap stopped at step. paused tells whether all engines were left out of service."""

    _STATE: ClassVar[dict[str, str]] = {
        "drain": "The engines go on with their old weights.",
        "pause": "All engines hold their old weights; those that could be paused stay paused.",
        "resume": "All engines hold the new weights; those that resumed serve.",
    }

    def __init__(self, step: str, engine: str, cause: str, *, status: int | None = None, text: str = "") -> None:
        state = self._STATE.get(step, "All engines stay paused, so that none serves mixed weights.")
        super().__init__(f"Weight swap failed at step '{step}' on {engine}: {cause}", state, status=status, text=text)
        self.step = step
        self.engine = engine
        self.paused = step not in self._STATE


def from_response(operation: str, base_url: str, status: int, text: str, retry_after: str | None = None) -> EngineError:
    """The typed error for an answer with a status other than 2xx."""
    what = f"{base_url}{operation} answered {status}: {_shorten(text)}"
    if status in (429, 503):
        seconds = float(retry_after) if retry_after and retry_after.replace(".", "", 1).isdigit() else None
        return EngineBusy(what, status=status, text=text, retry_after=seconds)
    if status == 400:
        for pattern in _TOO_LONG:
            if found := pattern.search(text):
                numbers = {name: int(value) for name, value in found.groupdict().items()}
                return PromptTooLong(
                    what, prompt_tokens=numbers["prompt"], limit=numbers["limit"], new_tokens=numbers.get("new"), text=text
                )
    return EngineError(what, status=status, text=text)


def _shorten(text: str, limit: int = 400) -> str:
    text = " ".join(text.split()) or "(no text)"
    return text if len(text) <= limit else text[: limit - 1] + "…"
