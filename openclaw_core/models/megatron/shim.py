"""Mends megatron-core where the project needs it: install() does, once per process.

Most patches let it run on a machine without CUDA, which it asks for by name in many places; with CUDA they are left
out. patch_resume and patch_writer apply everywhere. Each says what fails without it; the tests show that it is still
needed. The patches change torch for the whole process, so only ranks (processes that do nothing else) call install().
"""

from __future__ import annotations

import contextlib
import functools
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from openclaw_core.models.megatron.core import distrib_optimizer, filesystem_async, megatron_random

_CPU = torch.device("cpu")
_installed = False


def install() -> bool:
    """Patch megatron-core and, without CUDA, torch; returns whether torch was patched."""
    global _installed
    patch_resume()
    patch_writer()
    if _installed or torch.cuda.is_available():
        return False
    _installed = True
    for patch in (patch_device, patch_factories, patch_streams, patch_rng, patch_tensor_type):
        patch()
    return True


def patch_device() -> None:
    """`torch.cuda.current_device()` and `.cuda()` raise without a driver; parameters and buffers are made with them."""
    torch.cuda.current_device = lambda: _CPU
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    torch.nn.Module.cuda = lambda self, *args, **kwargs: self


def patch_factories() -> None:
    """schedules.py, clip_grads.py and optimizer.py make small tensors with `device="cuda"`."""
    for name in ("zeros", "ones", "empty", "full", "tensor", "arange"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if isinstance(device, int) or str(device).startswith("cuda"):
            kwargs["device"] = _CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return make


class _NoStream:
    """Stands for a CUDA stream: every method does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def patch_streams() -> None:
    """Pipeline communication synchronises the device, gradient reduction asks for the current stream."""
    torch.cuda.synchronize = lambda *args, **kwargs: None
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *args, **kwargs: _NoStream()


def patch_rng() -> None:
    """The model-parallel RNG tracker reads and writes the CUDA generator; on CPU the default generator takes its place."""

    class CpuRngStates(megatron_random.CudaRNGStatesTracker):
        def add(self, name: str, seed: int) -> None:
            self._is_initialized = True
            if seed in self.seeds_ or name in self.states_:
                raise ValueError(f"RNG state {name} with seed {seed} exists already")
            self.seeds_.add(seed)
            self.states_[name] = torch.Generator().manual_seed(seed).get_state()

        @contextlib.contextmanager
        def fork(self, name: str = megatron_random._MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
            outside = torch.get_rng_state()
            torch.set_rng_state(self.states_[name])
            try:
                yield
            finally:
                self.states_[name] = torch.get_rng_state()
                torch.set_rng_state(outside)

    megatron_random.CudaRNGStatesTracker = CpuRngStates
    megatron_random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    torch.cuda.manual_seed = torch.manual_seed


def patch_tensor_type() -> None:
    """The optimizers compare `Tensor.type()` with names of CUDA types and refuse others."""
    original = torch.Tensor.type

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        if isinstance(answer, str) and sys._getframe(1).f_globals.get("__name__", "").startswith("megatron.core.optimizer"):
            return answer.replace("torch.", "torch.cuda.", 1) if ".cuda." not in answer else answer
        return answer

    torch.Tensor.type = type_


class _Threads:
    """Stands for a multiprocessing context: threads and their queues."""

    Queue = JoinableQueue = queue.Queue
    Process = threading.Thread

    @classmethod
    def get_context(cls, method: str) -> type[_Threads]:
        return cls


def patch_writer() -> None:
    """Saving starts a manager process that outlives a killed rank, and (0.16) forks writers out of a process full of
    threads. The save is waited for anyway, so threads write."""
    if filesystem_async.mp is not _Threads:
        filesystem_async.mp = _Threads
        filesystem_async._results_queue = queue.Queue()


def patch_resume() -> None:
    """Three defects of DistributedOptimizer's resume over torch's AdamW (megatron-core 0.16.1 and 0.19.2, no TE or Apex).

    They concern GPUs too, wherever torch's AdamW is used. With TE's or Apex' Adam nothing is patched.
    """
    optimizer_class = distrib_optimizer.DistributedOptimizer
    if getattr(distrib_optimizer, "HAVE_APEX_OR_TE", False) or hasattr(optimizer_class, "_openclaw_resume"):
        return
    optimizer_class._openclaw_resume = True
    for patch in (patch_state_before_first_step, patch_missing_step, patch_shared_step):
        patch(optimizer_class)


def patch_state_before_first_step(optimizer_class: Any) -> None:
    """`state_dict()` asserts that one step count exists, so saving and loading fail before the first step."""
    original = optimizer_class.state_dict

    def state_dict(self: Any) -> Any:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if not self.optimizer.state[parameter]:
                    self.optimizer.state[parameter] = {
                        "step": torch.tensor(0.0),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
        return original(self)

    optimizer_class.state_dict = state_dict


def patch_missing_step(optimizer_class: Any) -> None:
    """Loading a fully reshardable state raises KeyError 'step': the state holds it once, not per parameter."""
    original = optimizer_class._set_main_param_and_optimizer_states

    def set_states(self: Any, model_param: Any, tensors: dict[str, Any]) -> Any:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        if "step" not in tensors and "step" in state:
            tensors = {**tensors, "step": state["step"].clone()}
        return original(self, model_param, tensors)

    optimizer_class._set_main_param_and_optimizer_states = set_states


def patch_shared_step(optimizer_class: Any) -> None:
    """After loading all parameters share one step tensor, so AdamW counts one step once per parameter, silently."""
    original = optimizer_class.load_state_dict

    def load_state_dict(self: Any, state_dict: Any) -> None:
        original(self, state_dict)
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()

    optimizer_class.load_state_dict = load_state_dict
