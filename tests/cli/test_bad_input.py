"""Bad input of every kind, to every command: one sentence, exit code 1 or 2, nothing on stdout, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.config.sources import ASSETS
from openclaw_core.run import driver, serve

TINY = "package:tiny-qwen3"
TRAIN = ["train", "-p", "tiny-cpu"]
FOREVER = "x" * 5000
NOBODY = "~no-such-user/model"


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of things that are not what they look like."""
    place = tmp_path_factory.mktemp("nasty")
    texts = {
        "list.yaml": "- 1\n",
        "tag.yaml": "extends: tiny-cpu\ndescription: !!python/object/apply:os.system ['touch pwned']\n",
        "self.yaml": "extends: self.yaml\n",
        "deep.yaml": "extends: tiny-cpu\nloss: " + "{a: " * 3000 + "1" + "}" * 3000,
        "twice.yaml": "extends: tiny-cpu\nloss: {k: 3, k: 4}\n",
    }
    for name, text in texts.items():
        (place / name).write_text(text)
    (place / "binary.yaml").write_bytes(b"\xff\xfe\0\1")
    (place / "folder.yaml").mkdir()
    (place / "loop").symlink_to("loop")
    os.mkfifo(place / "pipe")
    manifests = {
        "run-empty": "",
        "run-list": "[]",
        "run-pid": '{"manifest_version": 1, "name": "x", "processes": [{"role": "x", "pid": "NaN", "start": "", "since": 0}]}',
        "run-future": '{"manifest_version": 99}',
    }
    for name, text in manifests.items():
        (place / name).mkdir()
        (place / name / "run.json").write_text(text)
    files = {
        "cut": ("model.safetensors", (ASSETS / "tiny-qwen3/model.safetensors").read_bytes()[:1000]),
        "hollow": ("model.safetensors", b""),
        "huge": ("model.safetensors", b"\xff" * 8),
        "half": ("config.json", b"{"),
        "words": ("config.json", json.dumps({"model_type": "qwen3", "hidden_size": "wide"}).encode()),
    }
    for name, (file, content) in files.items():
        shutil.copytree(ASSETS / "tiny-qwen3", place / name)
        (place / name / file).write_bytes(content)
    (place / "garbage").mkdir()
    (place / "garbage/.metadata").write_bytes(b"garbage")
    (place / "dumps-cut").mkdir()
    (place / "dumps-cut/step-000001.safetensors").write_bytes(b"\xff" * 100)
    return place


@pytest.fixture
def occupied() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


INPUTS: list[tuple[list[str], int]] = [
    ([*TRAIN, "--set", "loss.deep.er.key=1"], 2),
    ([*TRAIN, "--set", "loss.k.x=1"], 2),
    ([*TRAIN, "--set", "loss=5"], 2),
    ([*TRAIN, "--set", "=5"], 2),
    ([*TRAIN, "--set", "loss.k=1e400"], 2),
    ([*TRAIN, "--set", "loss.k=" + "9" * 5000], 2),
    ([*TRAIN, "--set", "loss.k=-1"], 2),
    ([*TRAIN, "--set", "optimizer.lr=nan"], 2),
    ([*TRAIN, "--set", "ключ.к=1"], 2),
    ([*TRAIN, "--set", "users.preference=\u202e\U0001f600"], 2),
    ([*TRAIN, "--set", "student.hf=a\0b"], 2),
    ([*TRAIN, "--set", f"student.hf={FOREVER}"], 2),
    ([*TRAIN, "--set", "student.hf=loop"], 2),
    ([*TRAIN, "--set", f"student.hf={NOBODY}"], 2),
    ([*TRAIN, "--set", "proxy.port=70000"], 2),
    ([*TRAIN, "--set", "proxy.port=OCCUPIED"], 2),
    ([*TRAIN, "--set", "proxy.host=\0"], 2),
    ([*TRAIN, "--set", "partition.actor.devices=100000000"], 2),
    ([*TRAIN, "--set", "train.batch_size=99999999999999999999"], 2),
    ([*TRAIN, "--run-folder", "/proc/x"], 1),
    ([*TRAIN, "--run-folder", "loop/x"], 1),
    ([*TRAIN, "--run-folder", "a\0b"], 2),
    ([*TRAIN, "--run-folder", "list.yaml"], 2),
    ([*TRAIN, "--dry-run", "--output", "folder.yaml"], 1),
    (["train", "-p", "list.yaml"], 2),
    (["train", "-p", "tag.yaml"], 2),
    (["train", "-p", "self.yaml"], 2),
    (["train", "-p", "deep.yaml"], 2),
    (["train", "-p", "twice.yaml"], 2),
    (["train", "-p", "binary.yaml"], 2),
    (["train", "-p", "./loop"], 2),
    (["train", "-p", "\0"], 2),
    (["train", "-p", NOBODY], 2),
    (["train", "--resume", "run-list"], 1),
    (["serve", "-p", "tiny-cpu", "--set", "proxy.port=OCCUPIED"], 2),
    (["serve", "-p", "tiny-cpu", "--run-folder", "x" * 300], 2),
    (["status", "run-empty"], 1),
    (["status", "run-pid"], 1),
    (["status", "run-future"], 1),
    (["status", "pipe"], 2),
    (["status", "x" * 300], 2),
    (["inspect-candidates", "dumps-cut", "--step", "1", "--quiet"], 1),
    (["inspect-candidates", "loop"], 2),
    (["inspect-candidates", "dumps-cut", "--sample", "a", "--positions", "9" * 5000 + ":1"], 2),
    (["convert-ckpt", "cut", "made"], 1),
    (["convert-ckpt", "hollow", "made"], 1),
    (["convert-ckpt", "huge", "made"], 1),
    (["convert-ckpt", "half", "made"], 1),
    (["convert-ckpt", "words", "made"], 1),
    (["convert-ckpt", "garbage", "made"], 1),
    (["convert-ckpt", "loop", "made"], 2),
    (["convert-ckpt", TINY, "loop/x"], 1),
    (["convert-ckpt", TINY, "list.yaml"], 2),
    (["convert-ckpt", NOBODY, "made"], 2),
    (["convert-ckpt", TINY, NOBODY], 2),
    (["convert-ckpt", TINY, "a\0b"], 2),
    (["convert-ckpt", TINY, "made", "--tp", "-1"], 2),
    (["convert-ckpt", TINY, "--verify-only"], 2),
    (["validate", "--student", "loop"], 2),
    (["validate", "--student", "\0"], 2),
    (["validate", "--student", NOBODY], 2),
    (["profiles", "show", "tag.yaml"], 2),
    (["profiles", "diff", "tiny-cpu", "self.yaml"], 2),
]


@pytest.mark.parametrize(
    ("args", "code"), INPUTS, ids=lambda value: ascii(" ".join(value))[:60] if isinstance(value, list) else ""
)
def test_one_sentence_and_nothing_else(
    args: list[str], code: int, material: Path, occupied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(material)
    for module, name in ((driver, "_run"), (serve, "_serve")):
        monkeypatch.setattr(module, name, lambda *given: pytest.fail("it started"))
    before = sorted(material.rglob("*"))
    done = CliRunner().invoke(app, [arg.replace("OCCUPIED", str(occupied)) for arg in args])
    assert (done.exit_code, done.stdout) == (code, ""), done.stderr
    first, *rest = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert first.startswith("error: ")
    assert all(line.startswith("  - ") for line in rest)
    assert "should not" not in done.stderr
    assert all(len(line) < 1000 and line.isprintable() for line in [first, *rest])
    assert sorted(material.rglob("*")) == before


@pytest.mark.parametrize("name", ["cut", "hollow", "half", "garbage"])
def test_validate_tells_what_is_broken(name: str, material: Path) -> None:
    done = CliRunner().invoke(app, ["validate", "--student", str(material / name), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["state"] == "problem"
    assert done.stderr == ""
