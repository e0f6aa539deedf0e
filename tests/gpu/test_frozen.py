"""The kernels of a frozen model's forward pass against the plain functions; TRITON_INTERPRET=1 runs them on the CPU."""

from __future__ import annotations

import os

import pytest
import torch

from openclaw_core.models.megatron import frozen

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (CUDA or os.environ.get("TRITON_INTERPRET") == "1"), reason="needs a CUDA device"),
]
# The interpreter cuts digits off where a GPU rounds to bfloat16.
DTYPES = [torch.float32, torch.bfloat16, torch.float16] if CUDA else [torch.float32, torch.float16]


@pytest.fixture
def kernels():
    from openclaw_core.models.megatron import frozen_kernels

    return frozen_kernels


def some(*shape, dtype):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def as_good(found, plain, true):
    """Results as near to those in float64 as the plain function's, in the norm, but for a tenth and float32's rounding."""
    for one, other, exact in zip(found, plain, true, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        gap, allowed = ((x.double() - exact).norm() / exact.norm() for x in (one, other))
        assert gap <= 1.1 * allowed + 1e-6


def check(function, plain, *arguments):
    """arguments are tensors, None and numbers."""
    wide = [x.double() if isinstance(x, torch.Tensor) else x for x in arguments]
    results = (function(*arguments), plain(*arguments), plain(*wide))
    as_good(*(r if isinstance(r, tuple) else (r,) for r in results))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [2560, 96, 1])
def test_norms(kernels, dtype, width):
    x, added, weight = some(5, 1, width, dtype=dtype), some(5, 1, width, dtype=dtype), some(width, dtype=dtype)
    check(kernels.rms_norm, frozen.rms_norm, x, weight, 1e-6)
    check(kernels.add_norm, frozen.add_norm, x, added, weight, 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "queries", "dim"), [(8, 4, 128), (1, 1, 64), (3, 5, 40)])
@pytest.mark.parametrize("normed", [True, False])
def test_rotation(kernels, dtype, groups, queries, dim, normed):
    angles = some(7, dim // 2, dtype=torch.float32) * 9
    mixed, turn = some(7, groups, queries + 2, dim, dtype=dtype), torch.cat((angles.cos(), angles.sin()), 1).to(dtype)
    weights = (some(dim, dtype=dtype), some(dim, dtype=dtype)) if normed else (None, None)
    check(kernels.rotate, frozen.rotate, mixed, turn, *weights, 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [9728, 33])
def test_activation(kernels, dtype, width):
    x = some(5, 1, 2 * width, dtype=dtype) * 3
    check(kernels.swiglu, frozen.swiglu, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_are_trusted(kernels, dtype):
    assert frozen._kernels(DEVICE, dtype) is kernels


def test_no_rows(kernels):
    x = some(0, 1, 8, dtype=torch.float32)
    assert kernels.rms_norm(x, x.new_ones(8), 1e-6).shape == x.shape
    assert kernels.swiglu(x).shape == (0, 1, 4)
    assert kernels.rotate(x.view(0, 1, 4, 2), x.new_zeros(0, 2), None, None, 1e-6)[0].shape == (0, 2, 2)
