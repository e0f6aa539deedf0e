"""What the student answers to the driver; light, so that the driver needs no torch to read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from openclaw_core.types import TopK


@dataclass(frozen=True, slots=True)
class OldPass:
    """The policy of the start of the step at a sample's R response positions: all [R], top [R, K]."""

    sampled_logprobs: np.ndarray
    entropy: np.ndarray
    lse: np.ndarray
    top: TopK


@dataclass(frozen=True, slots=True)
class StepResult:
    """metrics: group ("all" and each sample kind) -> name -> mean; dumps: sample id -> arrays named as in dumps/schema.py.

    losses: sample id -> masked means over positions: "total", and "grpo" and "opd" before their weights where computed.
    """

    grad_norm: float
    tokens: int
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    dumps: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    losses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
