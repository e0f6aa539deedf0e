"""A frozen model's attention in squares and other rows, where the kernels are left alone, and what is said of it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend

from openclaw_core.models.megatron import attention, spans, squares
from openclaw_core.models.megatron.packing import SequenceIds, make_pack
from openclaw_core.models.megatron.prefix import make_shared_pack

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SHAPE = (CPU, torch.float32, 4, 2, 16)
SEQUENCES = [SequenceIds((1, 2, 3), (4,)), SequenceIds((1, 2), (2, 3)), SequenceIds((1,), (7,)), SequenceIds((9,), ())]


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(squares, "BACKEND", SDPBackend.MATH)
    squares._works.cache_clear()
    yield
    squares._works.cache_clear()


@pytest.mark.parametrize("make", [make_pack, make_shared_pack])
@pytest.mark.parametrize("step", [1, 2, 3, 9])
def test_squares_and_the_rest_are_the_whole(monkeypatch, step, make):
    monkeypatch.setattr(squares, "STEP", step)
    pack = make(SEQUENCES, CPU)
    rows = len(pack.input_ids)
    q, k, v = torch.randn(rows, 4, 16), torch.randn(rows, 2, 16), torch.randn(rows, 2, 16)
    parts = squares.cut(pack, 2)
    assert sum(side for _, side in parts.squares) + sum(block.rows for block in parts.rest.blocks) == rows
    assert bool(parts.squares) is (step < 9)
    whole = attention.attend_each(q, k, v, pack, 0.3)
    torch.testing.assert_close(squares._attend(q, k, v, parts, 0.3, spans.attend_each), whole)
    assert torch.equal(squares.attend(q, k, v, pack, None, 0.3), whole)
    assert not squares.works(q, k), "nothing of it on a CPU"


def test_wanted_rows_alone():
    pack = make_shared_pack(SEQUENCES, CPU)
    rows = len(pack.input_ids)
    q, k, v = torch.randn(rows, 4, 16), torch.randn(rows, 2, 16), torch.randn(rows, 2, 16)
    wanted = spans.wanted(pack, 2)
    found = squares.attend_wanted(q, k, v, wanted, 0.3)
    torch.testing.assert_close(found[wanted.places], attention.attend_each(q, k, v, pack, 0.3)[pack.rows])


@pytest.fixture
def told(monkeypatch):
    def tell(change):
        def attend_spans(q, k, v, part, out, scale):
            spans.attend_each(q, k, v, part, out, scale)
            out.copy_(change(out))

        monkeypatch.setattr("importlib.util.find_spec", lambda _: "there")
        monkeypatch.setattr(squares, "_kernel", lambda: attend_spans)
        return squares._disagreement(*SHAPE)

    return tell


def raising(error):
    def change(_):
        raise error

    return change


def test_what_fails_is_told(told):
    assert told(lambda x: x) is None
    assert told(lambda x: x + 1) == "they differ by 1.0e+00"
    assert told(lambda x: x * torch.nan) == "they differ by nan"
    assert told(raising(RuntimeError("No available kernel.\nMore."))) == "RuntimeError: No available kernel."
    assert told(raising(ValueError("No such dtype."))) == "ValueError: No such dtype."


def test_shapes_that_nothing_is_made_for(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: "there")
    assert squares._disagreement(CPU, torch.float32, 4, 2, 80) == "they are made for other shapes"
    assert squares._disagreement(CPU, torch.float32, 258, 2, 64) == "they are made for other shapes"


def test_no_triton(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert squares._disagreement(*SHAPE) == "Triton isn't installed"


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_full_or_failed_device_is_no_word_on_the_kernels(told, kind):
    with pytest.raises(kind):
        told(raising(kind("CUDA")))


def test_it_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(squares, "_disagreement", lambda *_: "no plan")
    shape = (GPU, torch.bfloat16, 4, 2, 8)
    with pytest.warns(UserWarning, match="4 heads over 2 of 8, torch.bfloat16, on cuda:0, for the kernels fail there: no plan"):
        assert not squares._works(*shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not squares._works(*shape)
