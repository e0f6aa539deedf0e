"""An engine or a judge as an actor: it owns one child process and goes down with it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import httpx

from openclaw_core.run.actors.process import enter
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.services import Service

WATCH_EVERY_S = 0.5


class ServerActor:
    """Starts argv (which gets --port-file) and answers with its address; ends when the child does, so that nobody waits."""

    def __init__(self, run: RunFolder, role: str, index: int, argv: Sequence[str], health: str, start_timeout_s: float) -> None:
        enter(run, role, index)
        name = f"{role}-{index}-server"
        port_file = run.path / f"{name}.port"
        self.service = Service(
            name,
            [*argv, "--port-file", str(port_file)],
            dict(os.environ),
            run.log(name),
            port_file=port_file,
            check=lambda port: _healthy(f"http://127.0.0.1:{port}{health}"),
            run=run,
        )
        self.start_timeout_s = start_timeout_s

    def start(self) -> str:
        """Waits until the child answers; returns its base address."""
        port = self.service.start(self.start_timeout_s)
        threading.Thread(target=self._watch, daemon=True).start()
        return f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """Ends the child."""
        self._stopping = True
        self.service.stop()

    _stopping = False

    def _watch(self) -> None:
        while self.service.poll() is None:
            time.sleep(WATCH_EVERY_S)
        if not self._stopping:
            # A server that is gone must look gone: the driver sees the actor end and stops the run.
            os._exit(1)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False
