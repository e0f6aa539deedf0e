"""One generation as the batch sees it: what was asked, what was sampled so far, and how it ended."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from openclaw_core.rollout.engines.embedded.params import SamplingParams

# (log-prob, id) pairs of one position
Pairs = list[tuple[float, int]]


@dataclass(eq=False)
class Request:
    """finish is called once, from the engine's thread, when result is complete.

    input_start is the prompt position from which log-probs are wanted, or None. reason or error says how it ended.
    """

    rid: str
    input_ids: list[int]
    params: SamplingParams
    max_new_tokens: int
    finish: Callable[[Request], None]
    seed: int
    top: int = 0
    watched_ids: tuple[int, ...] = ()
    input_start: int | None = None
    return_logprob: bool = False

    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_top: list[Pairs] = field(default_factory=list)
    output_watched: list[Pairs] = field(default_factory=list)
    input_logprobs: list[float | None] = field(default_factory=list)
    input_top: list[Pairs | None] = field(default_factory=list)
    input_watched: list[Pairs | None] = field(default_factory=list)
    version: str = ""
    version_changes: list[tuple[str, int]] = field(default_factory=list)
    retractions: int = 0
    reason: dict[str, Any] | None = None
    error: str | None = None
    created: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - sampling, no secret

    def uniform(self) -> float:
        """In [0, 1) with 48 bits, so that uniform * total stays below total in float64."""
        return self._random.getrandbits(48) / (1 << 48)

    @property
    def tokens(self) -> list[int]:
        return self.input_ids + self.output_ids

    def spans(self) -> list[dict[str, Any]]:
        """SGLang's weight_versions: which half-open ranges of the output each version sampled."""
        spans: list[dict[str, Any]] = []
        for version, end in (*self.version_changes, (self.version, len(self.output_ids))):
            start = spans[-1]["end"] if spans else 0
            if spans and end <= start:
                continue
            if spans and spans[-1]["version"] == version:
                spans[-1]["end"] = end
            else:
                spans.append({"version": version, "start": start, "end": end})
        return spans

    def end(self, reason: dict[str, Any], version: str) -> None:
        self.reason = reason
        self.close(version)

    def fail(self, error: str, version: str) -> None:
        self.error = error
        self.close(version)

    def close(self, version: str) -> None:
        """Hands the result over; reason or error is set by now."""
        self.version = version
        if self.max_new_tokens == 0:
            # One token is sampled with every prefill; a request that only scores its prompt doesn't get to see it.
            for listed in (self.output_ids, self.output_logprobs, self.output_top, self.output_watched):
                listed.clear()
        self.finish(self)
