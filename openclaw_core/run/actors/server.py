"""An engine or a judge as an actor: it owns one child process and goes down with it."""

from __future__ import annotations

import os
import sys
import threading
import time

from openclaw_core.errors import UserError
from openclaw_core.run.actors.process import enter
from openclaw_core.run.commands import ServerCommand
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.server import Server

WATCH_EVERY_S = 0.5


class ServerActor:
    """Starts a server and answers with its address; ends when the server does, so that nobody waits for it."""

    def __init__(self, run: RunFolder, role: str, index: int, command: ServerCommand) -> None:
        enter(run, role, index)
        self.server = Server(run, f"{role}-{index}-server", command)
        self._stopping = False

    def start(self, timeout_s: float) -> str:
        """Waits until the server is up; returns its base address."""
        self.server.start(timeout_s)
        threading.Thread(target=self._watch, daemon=True).start()
        return self.server.url

    def stop(self) -> None:
        """Ends the server."""
        self._stopping = True
        self.server.stop()

    def _watch(self) -> None:
        while self.server.service.poll() is None:
            time.sleep(WATCH_EVERY_S)
        if not self._stopping:
            # A server that is gone must look gone: the driver sees the actor end and stops the run.
            try:
                self.server.service.ensure_alive()
            except UserError as error:
                sys.stderr.write(f"{error}\n")
            os._exit(1)
