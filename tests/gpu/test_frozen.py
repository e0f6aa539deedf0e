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
# A rounding that falls the other way, at the place of the largest value; products and sums in one step in float32.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@pytest.fixture
def kernels():
    from openclaw_core.models.megatron import frozen_kernels

    return frozen_kernels


def some(*shape, dtype):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def same(found, want, dtype):
    assert found.dtype == want.dtype
    torch.testing.assert_close(found, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    if dtype != torch.float32:
        assert (found == want).float().mean() > 0.99, "rounds otherwise than the plain function"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [2560, 96, 1])
def test_norms(kernels, dtype, width):
    x, added, weight = some(5, 1, width, dtype=dtype), some(5, 1, width, dtype=dtype), some(width, dtype=dtype)
    same(kernels.rms_norm(x, weight, 1e-6), frozen.rms_norm(x, weight, 1e-6), dtype)
    for found, want in zip(kernels.add_norm(x, added, weight, 1e-6), frozen.add_norm(x, added, weight, 1e-6), strict=True):
        same(found, want, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "queries", "dim"), [(8, 4, 128), (1, 1, 64), (3, 5, 40)])
@pytest.mark.parametrize("normed", [True, False])
def test_rotation(kernels, dtype, groups, queries, dim, normed):
    mixed, turn = some(7, groups, queries + 2, dim, dtype=dtype), some(7, dim, dtype=dtype)
    weights = (some(dim, dtype=dtype), some(dim, dtype=dtype)) if normed else (None, None)
    for found, want in zip(kernels.rotate(mixed, turn, *weights, 1e-6), frozen.rotate(mixed, turn, *weights, 1e-6), strict=True):
        same(found, want, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [9728, 33])
def test_activation(kernels, dtype, width):
    x = some(5, 1, 2 * width, dtype=dtype) * 3
    same(kernels.swiglu(x), frozen.swiglu(x), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_are_trusted(kernels, dtype):
    assert frozen._kernels(DEVICE, dtype) is kernels


def test_no_rows(kernels):
    x = some(0, 1, 8, dtype=torch.float32)
    assert kernels.rms_norm(x, x.new_ones(8), 1e-6).shape == x.shape
    assert kernels.swiglu(x).shape == (0, 1, 4)
    assert kernels.rotate(x.view(0, 1, 4, 2), x.new_zeros(0, 2), None, None, 1e-6)[0].shape == (0, 2, 2)
