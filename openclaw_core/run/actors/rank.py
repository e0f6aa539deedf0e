"""One rank of a role that runs megatron-core: where its ranks meet."""

from __future__ import annotations

import os
import socket
from typing import Any

from openclaw_core.run.actors.process import enter
from openclaw_core.run.runfolder import RunFolder

LOOPBACK = "127.0.0.1"


class RankActor:
    """Base of the student's and the teacher's ranks."""

    role = ""

    def __init__(self, run: RunFolder, index: int, world: int, one_machine: bool, device: str) -> None:
        enter(run, self.role, index)
        if one_machine:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if device == "cpu":
            # megatron decorates small functions for torch.compile, whose import alone takes a second.
            os.environ["TORCHDYNAMO_DISABLE"] = "1"
        self.run, self.index, self.world, self.one_machine = run, index, world, one_machine

    def meeting_point(self) -> tuple[str, int]:
        """Address and a free port on this rank's machine; asked of rank 0."""
        address = LOOPBACK if self.one_machine else socket.gethostbyname(socket.gethostname())
        with socket.socket() as probe:
            probe.bind((address, 0))
            return address, probe.getsockname()[1]

    def rendezvous(self, point: tuple[str, int]) -> Any:
        """Where this rank meets the others."""
        from openclaw_core.models.megatron.parallel import Rendezvous

        return Rendezvous(point[0], point[1], self.index, self.world)
