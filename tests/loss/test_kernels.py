"""When the kernels are used at all; what they compute is tested in tests/gpu."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

from openclaw_core.loss import kernels
from openclaw_core.loss.kernels import selfcheck

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels run on the CPU")
CPU = torch.device("cpu")


def test_a_cpu_has_the_plain_path():
    assert not kernels.usable(torch.zeros(2, 3))


def test_what_is_turned_off_comes_back(monkeypatch):
    monkeypatch.setattr(kernels, "_installed", lambda: True)
    monkeypatch.setattr(kernels, "_interpreted", lambda: True)
    logits = torch.zeros(2, 3)
    assert kernels.usable(logits)
    with kernels.disabled():
        assert not kernels.usable(logits)
        with kernels.disabled():
            pass
        assert not kernels.usable(logits)
    assert kernels.usable(logits)
    assert not kernels.usable(logits.double())
    assert not kernels.usable(logits.t())
    assert not kernels.usable(logits[:0])


def test_equal_paths_agree():
    assert selfcheck.passes(CPU, torch.float32)
    assert selfcheck.passes(CPU, torch.bfloat16)


@pytest.mark.parametrize("name", ["top ids", "entropies", "losses, tail bin,", "gradients, tail none,"])
def test_one_wrong_element_is_a_disagreement(name, monkeypatch):
    results, calls = selfcheck._results, []

    def first_is_wrong(device, dtype):
        found = results(device, dtype)
        if not calls:
            found[name] = found[name].clone()
            found[name].view(-1)[-40 if found[name].numel() > 40 else -1] += 1
        calls.append(dtype)
        return found

    monkeypatch.setattr(selfcheck, "_results", first_is_wrong)
    with pytest.warns(UserWarning, match=f"{name} differ by "):
        assert not selfcheck.passes(CPU, torch.bfloat16)


def test_a_failure_is_a_disagreement_and_is_warned_of_once(monkeypatch):
    def stops(device, dtype):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(selfcheck, "_results", stops)
    kernels._trusted.cache_clear()
    with pytest.warns(UserWarning, match=r"plain path for torch.float16 on cpu.*RuntimeError: no compiler\."):
        assert not kernels._trusted(CPU, torch.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not kernels._trusted(CPU, torch.float16)
    assert not kernels._state["checking"]
    kernels._trusted.cache_clear()


def test_the_check_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    selfcheck.passes(CPU, torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
