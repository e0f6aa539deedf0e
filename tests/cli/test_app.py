"""The frame: start-up, flags before and after a command, exit codes, errors as sentences, nothing on stdout but data."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openclaw_cli.app import app

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


@pytest.mark.parametrize(
    "args", [["profiles", "list"], ["profiles", "list", "--json"], ["profiles", "list", "--quiet"], ["--help"]]
)
def test_a_reader_who_leaves_ends_it_in_silence(args: list[str]) -> None:
    gone, stdout = os.pipe()
    os.close(gone)
    try:
        done = subprocess.run([*PROGRAM, *args], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(stdout)
    assert (done.returncode, done.stderr) == (141, "")


def test_version() -> None:
    assert run("--version").stdout.startswith("openclaw-rl ")


def test_errors_are_json_where_data_is() -> None:
    done = run("train", "-p", "qwen3-4b-topk", "--set", "partition.actor.devices=6", "--dry-run", "--json")
    assert done.returncode == 2
    body = json.loads(done.stdout)
    assert body["nearest"] == {"partition.actor.devices": 4}
    assert body["findings"][-1]["remedy"] == "--set partition.actor.devices=4"
    said = "The plan of profile qwen3-4b-topk can't be followed."
    assert (body["error"], body["remedy"]) == (said, "See the remedy of each finding.")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--json", "train", "--nope"], "No such option: --nope"),
        (["train", "--nope", "--json"], "No such option: --nope"),
        (["nope", "--json"], "No such command 'nope'"),
        (["profiles", "--json"], "Missing command"),
        (["--json"], "Missing command"),
        (["inspect-candidates", "--json"], "Missing argument 'RUN'"),
        (["--json", "status", "--stall-after", "x"], "Invalid value for '--stall-after'"),
        (["--json", "inspect-candidates", "r", "--kind", "gold"], "'gold' is not one of"),
        (["--json", "train", "-p"], "requires an argument"),
        (["--json", "--quiet", "train"], "exclude each other"),
        (["--json", "train", "-p", "nope"], "There is no profile 'nope'"),
    ],
)
def test_wrong_usage_is_json_too(args: list[str], says: str) -> None:
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 2
    body = json.loads(done.stdout)
    assert says in body["error"]
    assert body["remedy"]
    assert done.stderr == f"error: {body['error']} {body['remedy']}\n"


@pytest.mark.parametrize("args", [["train", "--nope"], ["nope"], ["status", "--stall-after", "x"], ["profiles", "show"]])
def test_wrong_usage_is_one_sentence(args: list[str]) -> None:
    done = CliRunner().invoke(app, args)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ")


STUDENT = "package:tiny-qwen3"


@pytest.mark.parametrize(
    "args",
    [
        ["train", "-p", "PATH.yaml"],
        ["train", "--resume", "PATH"],
        ["serve", "-p", "PATH.yaml"],
        ["status", "PATH"],
        ["inspect-candidates", "PATH"],
        ["validate", "--student", "PATH"],
        ["validate", "--student", STUDENT, "--teacher", "PATH"],
        ["validate", "--student", STUDENT, "--student-hf", "PATH"],
        ["validate", "--profile", "PATH.yaml"],
        ["convert-ckpt", "PATH", "made"],
        ["convert-ckpt", STUDENT, "made", "--hf-config", "PATH"],
        ["convert-ckpt", "PATH", "--verify-only"],
        ["profiles", "show", "PATH.yaml"],
        ["profiles", "diff", "tiny-cpu", "PATH.yaml"],
    ],
)
def test_a_path_that_is_not_there_is_wrong_usage(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.yaml").mkdir()
    for path, profile in (("none", "none.yaml"), ("file", "folder.yaml")):
        given = [arg.replace("PATH.yaml", profile).replace("PATH", path) for arg in args]
        done = CliRunner().invoke(app, given)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.yaml"]


@pytest.mark.parametrize(
    "args", [["train", "--resume", "."], ["status", "."], ["inspect-candidates", "."], ["convert-ckpt", ".", "x"]]
)
def test_what_lies_at_a_path_is_a_finding(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, args)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["validate"],
        ["validate", "--student", "/nowhere"],
        ["validate", "--profile", "nope"],
        ["convert-ckpt", "/nowhere", "x"],
        ["convert-ckpt", STUDENT, "x", "--expect", "layers"],
        ["convert-ckpt", STUDENT, "x", "--step", "3"],
        ["convert-ckpt", "/tmp", "x"],
        ["train", "--profile", "tiny-cpu", "--set", "student.hf=/nowhere"],
        ["train", "--resume", "/nowhere"],
        ["train", "--profile", "tiny-cpu", "--run-folder", "/proc/x"],
        ["serve", "--profile", "tiny-cpu", "--set", "student.hf=/nowhere"],
    ],
)
def test_a_refusal_imports_nothing_heavy(args: list[str]) -> None:
    program = (
        "import sys\nfrom openclaw_cli.app import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as end:\n    code = end.code\n"
        "print(code, *sorted({'torch', 'megatron', 'ray', 'transformers'} & {n.partition('.')[0] for n in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=False)
    assert done.stdout.split() in (["1"], ["2"]), done.stderr


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
