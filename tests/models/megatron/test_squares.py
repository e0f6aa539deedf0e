"""A frozen model's attention in squares and other rows, where the kernels are left alone, and what is said of it."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend

from openclaw_core.models.megatron import attention, spans, squares
from openclaw_core.models.megatron.packing import SequenceIds, make_pack
from openclaw_core.models.megatron.prefix import make_shared_pack

CPU = torch.device("cpu")
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
def works(monkeypatch):
    """Whether a kernel, plain attention changed, is used."""

    def tried(change, *shape):
        def attend_spans(q, k, v, part, out, scale):
            spans.attend_each(q, k, v, part, out, scale)
            out.copy_(change(out))

        monkeypatch.setattr(squares, "_kernel", lambda: attend_spans)
        return squares._works(*(shape or SHAPE))

    return tried


def raising(error):
    def change(_):
        raise error

    return change


def test_what_agrees_is_used(works):
    assert works(lambda x: x)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x * 1.1, "rows of a square and others differ by 1.0e-01"),
        (lambda x: x * torch.nan, "rows of a square and others differ by nan"),
        (raising(RuntimeError("No available kernel.\nMore.")), r"RuntimeError: No available kernel\."),
        (raising(ValueError("No such dtype.")), r"ValueError: No such dtype\."),
    ],
)
def test_what_fails_is_told_once(works, change, said):
    where = "4 heads over 2 of 16, torch.float32, on cpu, for the kernels fail there: "
    with pytest.warns(UserWarning, match=where + said):
        assert not works(change)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not works(change)


@pytest.mark.parametrize("shape", [(4, 2, 80), (258, 2, 64)])
def test_shapes_that_nothing_is_made_for(works, shape):
    with pytest.warns(UserWarning, match="they are made for other shapes"):
        assert not works(lambda x: x, CPU, torch.float32, *shape)


def test_no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "openclaw_core.models.megatron.spans_kernel", None)
    with pytest.warns(UserWarning, match="ModuleNotFoundError: .*spans_kernel"):
        assert not squares._works(*SHAPE)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_full_or_failed_device_is_no_word_on_the_kernels(works, kind):
    with pytest.raises(kind):
        works(raising(kind("CUDA")))
