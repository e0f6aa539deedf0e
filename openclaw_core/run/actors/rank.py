"""One rank of a role that runs megatron-core: where its ranks meet."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from openclaw_core.run.actors.process import enter
from openclaw_core.run.runfolder import RunFolder

if TYPE_CHECKING:
    from openclaw_core.models.megatron.parallel import Rendezvous

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
        """Where the ranks meet, from rank 0, which listens from now on; the others use the time for their imports."""
        from openclaw_core.models.megatron import parallel

        if self.index == 0:
            address = LOOPBACK if self.one_machine else socket.gethostbyname(socket.gethostname())
            self._meeting = parallel.host(self.world, address)
            return self._meeting.address, self._meeting.port
        return "", 0

    def rendezvous(self, point: tuple[str, int]) -> Rendezvous:
        """What this rank joins with."""
        from openclaw_core.models.megatron.parallel import Rendezvous

        return self._meeting if self.index == 0 else Rendezvous(point[0], point[1], self.index, self.world)
