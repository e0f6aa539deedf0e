"""A real browser without a window, spoken to in the WebDriver protocol."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


class Browser:
    """One window. Answers are JSON's own types."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._http = httpx.Client(base_url=address, timeout=60.0, trust_env=False)
        self._path = "/session"
        self._path += "/" + self._ask("", {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]

    def open(self, url: str) -> None:
        self._ask("/url", {"url": url})

    def run(self, script: str) -> Any:
        """What a script in the page returns."""
        return self._ask("/execute/sync", {"script": script, "args": []})

    def size(self, width: int, height: int) -> None:
        """The size of the page itself, also below what a window can have."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def scheme(self, name: str) -> None:
        """What the reader prefers: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self._ask("/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}})

    def press(self, key: str) -> None:
        """A key, for whatever has the focus."""
        strokes = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._ask("/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]})

    def click(self, selector: str) -> None:
        found = self._ask("/element", {"using": "css selector", "value": selector})
        self._ask(f"/element/{found[ELEMENT]}/click", {})

    def console(self) -> list[Any]:
        """Messages since the last call: errors of scripts, and of what a page may not load."""
        return list(self._ask("/se/log", {"type": "browser"}))

    def close(self) -> None:
        self._http.delete(self._path)
        self._http.close()

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._http.post(self._path + path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile. Without one on this machine the test is skipped, or fails where the gate wants it."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        missing = "chromium and chromedriver are not installed"
        pytest.fail(missing) if os.environ.get("OPENCLAW_TEST_BROWSER") == "required" else pytest.skip(missing)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"binary": programs[0], "args": [*FLAGS, f"--user-data-dir={profile}"]}
    driver = subprocess.Popen([str(programs[1]), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(port)
        window = Browser(f"http://127.0.0.1:{port}", options)
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait()


def _await(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "chromedriver doesn't listen"
            time.sleep(0.1)
