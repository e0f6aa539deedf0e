"""A server of this run: one child process on a loopback port that is known before it starts."""

from __future__ import annotations

import os
import socket

import httpx

from openclaw_core.run.commands import ServerCommand
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.services import Service


class Server:
    """Not started yet; url is where it will answer. name becomes its role in the manifest and its log's name."""

    def __init__(self, run: RunFolder, name: str, command: ServerCommand) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.service = Service(
            name,
            command.on(port),
            dict(os.environ),
            run.log(name),
            check=lambda _: _healthy(self.url + command.health),
            run=run,
            fixed_port=port,
        )

    def start(self, timeout_s: float) -> None:
        """Returns once the server is up; ServiceError when it ends or takes longer."""
        self.service.start(timeout_s)

    def stop(self) -> None:
        """Ends the server and all it started."""
        self.service.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
