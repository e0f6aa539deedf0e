"""Triton kernels of the hot path, for CUDA tensors. Importing this file needs no triton; the other files do.

    tiles.py     how a program walks along a row, and the sums it keeps
    stats.py     one reading of the logits: sums for log-sum-exp and entropy, largest logit of each group of columns
    topk.py      exact top-K from the groups that can hold it
    gradient.py  the gradient of log-probs and entropy, written over the logits
    fused.py     the whole objective of a row, forward and gradient, in one program
    selfcheck.py a small problem with every term, on which a process tries the kernels before it trusts them

The plain path of logprobs.py and objective.py computes the same and is their oracle (tests/gpu, tests/loss).
TRITON_INTERPRET=1 runs the kernels on CPU tensors too, slowly (the interpreter of Triton 3.6 needs a NumPy before 2.4).
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_state = {"on": True, "checking": False}


def usable(logits: Tensor) -> bool:
    """Whether the kernels can take logits [N, V]: on a GPU where they agree with the plain path, dense rows, at most float32.

    The first call for a device and dtype tries that, which takes seconds; a disagreement is warned of once.
    """
    shaped = logits.dtype in _DTYPES and logits.numel() > 0 and logits.stride(1) == 1
    if not (shaped and _state["on"] and _installed()):
        return False
    if logits.is_cuda:
        return _state["checking"] or _trusted(logits.device, logits.dtype)
    return _interpreted() and logits.device.type == "cpu"


@contextmanager
def disabled() -> Iterator[None]:
    """Run the plain path inside, also on a GPU."""
    before, _state["on"] = _state["on"], False
    try:
        yield
    finally:
        _state["on"] = before


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _trusted(device: torch.device, dtype: torch.dtype) -> bool:
    from openclaw_core.loss.kernels import selfcheck

    _state["checking"] = True
    try:
        return selfcheck.passes(device, dtype)
    finally:
        _state["checking"] = False


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None
