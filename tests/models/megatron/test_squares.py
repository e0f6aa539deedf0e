"""Where cuDNN's squares are left alone, and what is said of it."""

from __future__ import annotations

import warnings

import pytest
import torch

from openclaw_core.models.megatron import attention, squares

SHAPE = (torch.float32, 4, 2, 8)
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def stand_in(change):
    def attend(q, k, v, parts, scale):
        return change(attention.attend_each(q, k, v, parts, scale))

    return attend


def raising(error):
    def attend(*_):
        raise error

    return attend


@pytest.fixture
def told(monkeypatch):
    def tell(attend):
        # The pack itself in place of its parts.
        monkeypatch.setattr(squares, "cut", lambda pack: pack)
        monkeypatch.setattr(squares, "_attend", attend)
        return squares._disagreement(CPU, *SHAPE)

    return tell


def test_what_fails_is_told(told):
    assert told(stand_in(lambda x: x)) is None
    assert told(stand_in(lambda x: x + 1)) == "it differs by 1.0e+00"
    assert told(stand_in(lambda x: x * torch.nan)) == "it differs by nan"
    assert told(raising(RuntimeError("No available kernel.\nMore."))) == "RuntimeError: No available kernel."


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_full_or_failed_device_is_no_word_on_cudnn(told, kind):
    with pytest.raises(kind):
        told(raising(kind("CUDA")))


def test_it_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(attention, "varlen", lambda: "kernel")
    monkeypatch.setattr(attention, "counts_from_the_end", lambda *_: True)
    monkeypatch.setattr(squares, "_disagreement", lambda *_: "no plan")
    squares._works.cache_clear()
    shape = (GPU, torch.bfloat16, 4, 2, 8)
    with pytest.warns(UserWarning, match="4 heads over 2 of 8, torch.bfloat16, on cuda:0, for it fails there: no plan"):
        assert not squares._works(*shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not squares._works(*shape)
    squares._works.cache_clear()
