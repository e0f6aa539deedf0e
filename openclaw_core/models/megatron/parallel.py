"""Process groups of one role: torch.distributed, then megatron-core's model-parallel groups on top."""

from __future__ import annotations

import datetime
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist

from openclaw_core.errors import Findings, UserError
from openclaw_core.models.megatron import shim
from openclaw_core.models.megatron.core import parallel_state, tensor_parallel

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """How one role's ranks share a model; the data-parallel size is what remains of the world."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    sequence_parallel: bool = False

    @property
    def model_ranks(self) -> int:
        return self.tensor * self.pipeline * self.context

    def check(self, world: int) -> None:
        """Raise Findings with everything that can't be done with these sizes in a world of so many ranks."""
        findings = []
        if world % self.model_ranks:
            findings.append(
                (
                    f"{world} ranks can't be split into groups of {self.model_ranks} "
                    f"(tensor {self.tensor} x pipeline {self.pipeline} x context {self.context}).",
                    f"Use a multiple of {self.model_ranks} devices.",
                )
            )
        if findings:
            raise Findings("The parallel sizes don't fit.", findings)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one role meet. store is rank 0's listening store where host() made it."""

    address: str
    port: int
    rank: int
    world: int
    store: dist.TCPStore | None = field(default=None, repr=False, compare=False)


def host(world: int, address: str = "127.0.0.1") -> Rendezvous:
    """Rank 0's meeting place, listening already, so that nobody can take its port before the others come.

    The other ranks get Rendezvous(meeting.address, meeting.port, rank, world).
    """
    store = dist.TCPStore(address, 0, world, is_master=True, wait_for_workers=False)
    return Rendezvous(address, store.port, 0, world, store)


def start(meeting: Rendezvous, sizes: ParallelSizes, *, seed: int, timeout_s: float = 600.0) -> torch.device:
    """Join the role's process groups and seed every generator; returns this rank's device.

    NCCL on the first visible GPU of this process, else gloo on CPU. The ranks of a role form the whole world of their
    processes: student and teacher are separate worlds.
    """
    sizes.check(meeting.world)
    for module in (r"megatron\.", r"torch\.distributed"):
        warnings.filterwarnings("ignore", module=module)
    shim.install()
    timeout = datetime.timedelta(seconds=timeout_s)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    store = meeting.store or dist.TCPStore(
        meeting.address, meeting.port, meeting.world, is_master=meeting.rank == 0, timeout=timeout, wait_for_workers=False
    )
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=meeting.rank,
        world_size=meeting.world,
        timeout=timeout,
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes.tensor,
        pipeline_model_parallel_size=sizes.pipeline,
        context_parallel_size=sizes.context,
        create_gloo_process_groups=True,
        distributed_timeout_minutes=max(1, int(timeout_s / 60)),
    )
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
    return device


def together(work: Callable[[], Result], title: str | None = None) -> Result:
    """work() of this rank; what it raises as UserError on any rank is raised on all, as one that raised alone would leave the
    others waiting. With a title, all that went wrong anywhere is told as Findings under it.

    All ranks call it; work itself waits for none.
    """
    result, error = None, None
    try:
        result = work()
    except UserError as raised:
        error = raised
    everyone: list[UserError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, error)
    errors = [one for one in everyone if one is not None]
    if not errors:
        return cast(Result, result)
    single = next((one for one in errors if not isinstance(one, Findings)), None)
    if single is not None and title is None:
        raise single from error
    raise merged(errors, title or errors[0].what) from error


def merged(errors: Sequence[UserError], title: str) -> Findings:
    """All that errors say, once, under one title."""
    found = [finding for one in errors for finding in (one.findings if isinstance(one, Findings) else [(one.what, one.remedy)])]
    return Findings(title, list(dict.fromkeys(found)))


def stop() -> None:
    """Leave all process groups; a new start() may follow."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
