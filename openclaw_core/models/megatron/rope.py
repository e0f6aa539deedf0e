"""Rotary frequencies as Hugging Face computes them: plain, linear and llama3 scaling."""

from __future__ import annotations

import math

import torch

from openclaw_core.errors import UserError
from openclaw_core.models.architecture import Architecture


def inverse_frequencies(arch: Architecture) -> torch.Tensor:
    """theta^(-2i/d) for i < d/2, scaled as the architecture says; [head_dim / 2] float32.

    Raises UserError for a kind of scaling that isn't known here.
    """
    exponents = torch.arange(0, arch.head_dim, 2, dtype=torch.int64).float() / arch.head_dim
    plain = 1.0 / (arch.rope_theta**exponents)
    scaling = arch.rope_scaling
    if scaling is None:
        return plain
    kind = scaling.get("rope_type", "default")
    if kind == "linear":
        return plain / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(plain, scaling)
    raise UserError(f"Rope scaling {kind!r} isn't supported.", "Supported: none, linear, llama3.")


def _llama3(plain: torch.Tensor, scaling: dict[str, float]) -> torch.Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between interpolated (Llama 3.1)."""
    factor, context = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / plain
    smooth = (context / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    scaled = torch.where(wavelength > context / low, plain / factor, plain)
    middle = (wavelength >= context / high) & (wavelength <= context / low)
    return torch.where(middle, between, scaled)
