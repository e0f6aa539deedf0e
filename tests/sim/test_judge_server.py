from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from openclaw_core.sim.judge_server import main

COMMAND = [sys.executable, "-m", "openclaw_core.sim.judge_server", "--port", "0", "--unparsable", "0"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    port_file = tmp_path / "judge.port"
    process = subprocess.Popen([*COMMAND, "--port-file", str(port_file)])
    try:
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port_file.read_text().strip()}"
    finally:
        process.terminate()
        assert process.wait(20) in (0, -15)


def test_server_answers_like_an_engine(server: str) -> None:
    data = {"task": "hint", "reply": "apple", "next_state": {"role": "user", "text": "in capitals, please"}, "history": []}
    body = {"model": "any", "temperature": 0.6, "n": 2, "messages": [{"role": "user", "content": f"DATA\n{json.dumps(data)}"}]}
    with httpx.Client(base_url=server, timeout=30) as client:
        answer = client.post("/v1/chat/completions", json=body).json()
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop"]
        assert all("[HINT_START]" in choice["message"]["content"] for choice in answer["choices"])
        assert client.get("/health").status_code == 200
        assert client.get("/model_info").json()["is_generation"]
        model = client.get("/v1/models").json()["data"][0]["id"]
        assert answer["model"] == model
        assert client.post("/v1/chat/completions", json={"messages": []}).status_code == 422


def test_occupied_port_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--port", str(taken.getsockname()[1])]) == 1
    assert capsys.readouterr().err.count("\n") == 1
