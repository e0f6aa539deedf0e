"""Sampling parameters as SGLang names and checks them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_EPS = 1e-6
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "json_schema": (None, ""),
    "regex": (None, ""),
    "ebnf": (None, ""),
    "structural_tag": (None, ""),
    "stop_regex": (None, "", []),
    "beam_width": (None,),
    "custom_params": (None, {}),
}
_IGNORED = {"spaces_between_special_tokens", "stream_interval"}


class BadRequestError(Exception):
    """Answered as 400 with this text."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's parameters after checks. max_new_tokens None means up to the context's end; top_k 0 is off."""

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    min_new_tokens: int = 0
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None
    n: int = 1

    @property
    def greedy(self) -> bool:
        return self.top_k == 1

    @property
    def filtered(self) -> bool:
        return self.top_p < 1.0 or self.top_k > 1 or self.min_p > 0.0


def parse_sampling_params(raw: Mapping[str, Any] | None) -> SamplingParams:
    """None means the default for every key, as in SGLang. BadRequestError for unknown keys and bad values, and for features that
    this engine lacks, unless they are set to have no effect."""
    given = {key: value for key, value in (raw or {}).items() if key not in _IGNORED}
    for key, neutral in _NEUTRAL.items():
        value = given.pop(key, None)
        if value not in neutral:
            raise BadRequestError(f"{key}={value!r} is not supported by the embedded engine.")
    values: dict[str, Any] = {}
    if "max_new_tokens" in given:
        maximum = given.pop("max_new_tokens")
        values["max_new_tokens"] = None if maximum is None else _integer("max_new_tokens", maximum, 0)
    stop = given.pop("stop", None) or ()
    values["stop"] = _texts((stop,) if isinstance(stop, str) else stop)
    values["stop_token_ids"] = frozenset(_integer("stop_token_ids", i, 0) for i in given.pop("stop_token_ids", None) or ())
    for key, low, high in (("top_p", _EPS, 1.0), ("min_p", 0.0, 1.0), ("temperature", 0.0, math.inf)):
        if (value := given.pop(key, None)) is not None:
            values[key] = _number(key, value, low, high)
    for key, lowest in (("min_new_tokens", 0), ("n", 1), ("sampling_seed", -(2**63)), ("top_k", -1)):
        if (value := given.pop(key, None)) is not None:
            values[key] = _integer(key, value, lowest)
    for key in ("ignore_eos", "skip_special_tokens", "no_stop_trim"):
        if (value := given.pop(key, None)) is not None:
            values[key] = bool(value)
    if given:
        raise BadRequestError(f"Unknown sampling parameters: {', '.join(sorted(given))}.")
    if values.get("top_k") == 0:
        raise BadRequestError("top_k must be -1 (disable) or at least 1, got 0.")
    values["top_k"] = max(values.get("top_k", 0), 0)
    if values.get("temperature", 1.0) < _EPS:
        values.update(temperature=1.0, top_k=1)
    params = SamplingParams(**values)
    if params.max_new_tokens is not None and params.min_new_tokens > params.max_new_tokens:
        raise BadRequestError(
            f"min_new_tokens must be in [0, max_new_tokens({params.max_new_tokens})], got {params.min_new_tokens}."
        )
    return params


def _texts(values: Any) -> tuple[str, ...]:
    if not all(isinstance(value, str) for value in values):
        raise BadRequestError("stop must be a string or a list of strings.")
    return tuple(value for value in values if value)


def _integer(key: str, value: Any, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise BadRequestError(f"{key} must be a whole number of at least {lowest}, got {value!r}.")
    return value


def _number(key: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
        bounds = "a non-negative finite number" if high == math.inf else f"in [{low:g}, {high:g}]"
        raise BadRequestError(f"{key} must be {bounds}, got {value!r}.")
    return float(value)
