"""Which functions a frozen model computes with."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

from openclaw_core.models import megatron
from openclaw_core.models.megatron import frozen

CPU = torch.device("cpu")
RIGHT = SimpleNamespace(rms_norm=frozen.rms_norm, add_norm=frozen.add_norm, rotate=frozen.rotate, swiglu=frozen.swiglu)
NAME = "openclaw_core.models.megatron.frozen_kernels"


def broken(*_):
    raise RuntimeError("no compiler")


@pytest.fixture
def offer(monkeypatch):
    """Kernels as if triton were there."""

    def put(**changed):
        kernels = SimpleNamespace(**{**vars(RIGHT), **changed})
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
        monkeypatch.setitem(sys.modules, NAME, kernels)
        monkeypatch.setattr(megatron, "frozen_kernels", kernels, raising=False)
        return kernels

    frozen._kernels.cache_clear()
    yield put
    frozen._kernels.cache_clear()


def test_kernels_that_agree_are_used(offer):
    kernels = offer()
    assert frozen._kernels(CPU, torch.float32) is kernels


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"swiglu": lambda x: frozen.swiglu(x) * 1.01}, "differ by"),
        ({"swiglu": lambda x: frozen.swiglu(x) * torch.nan}, "differ by nan"),
        ({"rms_norm": lambda *given: frozen.rms_norm(*given) * torch.nan}, "differ by nan"),
        ({"rotate": broken}, "RuntimeError: no compiler"),
    ],
)
def test_others_are_not_and_that_is_said(offer, changed, said):
    offer(**changed)
    with pytest.warns(UserWarning, match=said):
        assert frozen._kernels(CPU, torch.float32) is frozen._PLAIN


def test_a_cpu_needs_none():
    assert frozen._ops(torch.zeros(1)) is frozen._PLAIN


def test_want_of_memory_is_no_word_on_the_kernels(offer):
    def full(*_):
        raise torch.OutOfMemoryError("full")

    offer(rotate=full)
    with pytest.raises(torch.OutOfMemoryError):
        frozen._kernels(CPU, torch.float32)


def test_a_layer_says_what_it_does_not_take():
    known = {"rotary_pos_emb": torch.zeros(1), "packed_seq_params": None, "context": None}
    with pytest.raises(AssertionError, match="frozen layers take no attention_mask"):
        frozen._forward(None, torch.zeros(1), **known, attention_mask=torch.zeros(1))
