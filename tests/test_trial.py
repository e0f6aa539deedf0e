from __future__ import annotations

import math
import warnings

import pytest
import torch

from openclaw_core.trial import agrees

PLAIN = {"sums": torch.linspace(1, 2, 50), "ids": torch.arange(4), "zeros": torch.zeros(3)}


def told(fast, dtype=torch.float32):
    """What is warned of; None where fast agrees and nothing is."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agreed = agrees(fast, lambda: PLAIN, dtype, "The plain way goes on")
    assert agreed == (not caught)
    return str(caught[0].message) if caught else None


def changed(name, at, by):
    found = {key: x.clone() for key, x in PLAIN.items()}
    found[name][at] += by
    return lambda: found


def test_equal_results_agree():
    assert told(lambda: PLAIN) is None


def test_rounding_is_no_disagreement_and_one_wrong_element_is():
    for dtype, rounding in ((torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
        norm = float(PLAIN["sums"].norm())
        assert told(changed("sums", 3, 0.9 * rounding * norm), dtype) is None
        assert told(changed("sums", 3, 1.1 * rounding * norm), dtype).startswith("The plain way goes on: sums differ by ")


def test_whole_numbers_are_equal():
    assert told(changed("ids", 3, 1), torch.bfloat16).startswith("The plain way goes on: ids differ by 2.7e-01 of their norm")


def test_nan_is_no_agreement():
    assert "sums differ by nan" in told(changed("sums", -1, math.nan))
    assert told(changed("zeros", 0, math.nan)) == told(changed("zeros", 0, 1.0)) == "The plain way goes on: zeros aren't 0."


def test_a_failure_is_told_in_a_line():
    def stops():
        raise KeyError("no compiler\nand more")

    def refuses():
        raise RuntimeError("no plan\nand more")

    assert told(refuses) == "The plain way goes on: RuntimeError: no plan."
    assert told(stops).startswith("The plain way goes on: KeyError: ")


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_full_or_failed_device_is_no_word_on_what_is_tried(kind):
    def stops():
        raise kind("CUDA")

    with pytest.raises(kind):
        agrees(stops, lambda: PLAIN, torch.float32, "The plain way goes on")
