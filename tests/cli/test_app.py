"""The frame: start-up, flags before and after a command, exit codes, errors as sentences, nothing on stdout but data."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "openclaw_cli"]
HEAVY = {"torch", "ray", "transformers", "megatron", "numpy", "pydantic"}


def run(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPENCLAW", "CUDA_VISIBLE"))}
    return subprocess.run([*PROGRAM, *args], capture_output=True, text=True, cwd=cwd, env={**clean, **env}, check=False)


def test_help_imports_nothing_heavy_and_starts_fast() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "openclaw_cli", "--help"], capture_output=True, text=True, check=True
    )
    imported = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert not imported & HEAVY
    best = min(_seconds("--help") for _ in range(5))
    assert best < 0.3, f"openclaw --help took {best:.2f} s"


def _seconds(*args: str) -> float:
    """Processor time of one call: what it takes on an idle machine, whatever else runs on this one."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(*args)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_every_command_has_worked_examples() -> None:
    commands = [
        line.split()[0] for line in run("--help").stdout.split("Commands:")[1].split("Examples:")[0].splitlines() if line.strip()
    ]
    assert {"train", "serve", "profiles"} <= set(commands)
    for command in commands:
        shown = run(command, "--help")
        assert shown.returncode == 0
        assert f"openclaw {command}" in shown.stdout, f"{command} has no example"


@pytest.mark.parametrize("args", [["--json", "profiles", "list"], ["profiles", "--json", "list"], ["profiles", "list", "--json"]])
def test_json_before_and_after_the_command(args: list[str]) -> None:
    done = run(*args)
    assert "tiny-cpu" in [entry["name"] for entry in json.loads(done.stdout)["profiles"]]
    assert done.stderr == ""


def test_quiet_prints_the_shortest_form() -> None:
    assert run("profiles", "list", "--quiet").stdout.split() == ["qwen3-4b-grpo", "qwen3-4b-opd", "qwen3-4b-topk", "tiny-cpu"]


def test_json_and_quiet_exclude_each_other() -> None:
    done = run("--json", "profiles", "list", "--quiet")
    assert done.returncode == 2
    assert "exclude each other" in done.stderr


@pytest.mark.parametrize("args", [["nope"], ["train", "--nope"], ["profiles", "show"], ["train"], ["train", "-p", "nope"], []])
def test_wrong_usage_exits_2_and_says_nothing_on_stdout(args: list[str]) -> None:
    done = run(*args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    if args:
        assert done.stdout == ""
        assert done.stderr


def test_version() -> None:
    assert run("--version").stdout.startswith("openclaw-rl ")


def test_errors_are_json_where_data_is() -> None:
    done = run("train", "-p", "qwen3-4b-topk", "--set", "partition.actor.devices=6", "--dry-run", "--json")
    assert done.returncode == 2
    body = json.loads(done.stderr.splitlines()[-1])
    assert body["nearest"] == {"partition.actor.devices": 4}
    assert body["findings"][-1]["remedy"] == "--set partition.actor.devices=4"


def test_debug_adds_the_traceback() -> None:
    assert "Traceback" in run("train", "-p", "nope", OPENCLAW_DEBUG="1").stderr
    assert "Traceback" not in run("train", "-p", "nope", OPENCLAW_DEBUG="0").stderr


def test_no_colours_and_no_markup_in_a_pipe() -> None:
    done = run("profiles", "show", "tiny-cpu", "--set", "description=[bold]x[/bold]")
    assert "\x1b[" not in done.stdout
    assert "[bold]x[/bold]" in done.stdout


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m openclaw_cli profiles schema | head -n 1", shell=True, capture_output=True, text=True, check=False
    )
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("openclaw train --profile ti", ["tiny-cpu"]),
        ("openclaw profiles show qwen3-4b-t", ["qwen3-4b-topk"]),
        ("openclaw train --set loss.sub", ["loss.subset="]),
        ("openclaw train --js", ["--json"]),
    ],
)
def test_the_shell_is_offered_names(words: str, offered: list[str]) -> None:
    program = "from openclaw_cli.app import app; app(prog_name='openclaw')"
    env = {**os.environ, "_OPENCLAW_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert done.stdout.split() == offered


def test_a_closed_stdout_and_a_folder_that_is_gone(tmp_path: Path) -> None:
    command = f"exec {' '.join(PROGRAM)} profiles list"
    done = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", f"rmdir {gone}; {command}"], cwd=gone, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: The folder that this was started in is gone. Start it in one that exists.\n"
