"""Rotary frequencies as Hugging Face computes them: plain, linear and llama3 scaling."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from openclaw_core.errors import Findings
from openclaw_core.models.architecture import Architecture
from openclaw_core.models.buildable import ROPE_PARAMETERS, rope_findings


def inverse_frequencies(arch: Architecture) -> torch.Tensor:
    """theta^(-2i/d) for i < d/2, scaled as the architecture says; [head_dim / 2] float32.

    Raises Findings for a scaling that models/buildable.py doesn't list.
    """
    exponents = torch.arange(0, arch.head_dim, 2, dtype=torch.int64).float() / arch.head_dim
    plain = 1.0 / (arch.rope_theta**exponents)
    scaling = arch.rope_scaling
    if scaling is None:
        return plain
    problems = rope_findings(scaling)
    if problems:
        raise Findings("The rotary frequencies can't be computed.", problems)
    kind = scaling["rope_type"]
    return _SCALED[kind](plain, *(float(scaling[key]) for key in ROPE_PARAMETERS[kind]))


def _linear(plain: torch.Tensor, factor: float) -> torch.Tensor:
    return plain / factor


def _llama3(plain: torch.Tensor, factor: float, low: float, high: float, context: float) -> torch.Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between interpolated (Llama 3.1)."""
    wavelength = 2 * math.pi / plain
    smooth = (context / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    scaled = torch.where(wavelength > context / low, plain / factor, plain)
    middle = (wavelength >= context / high) & (wavelength <= context / low)
    return torch.where(middle, between, scaled)


_SCALED: dict[str, Callable[..., torch.Tensor]] = {"linear": _linear, "llama3": _llama3}
"""By kind; the numbers come in the order of ROPE_PARAMETERS."""
