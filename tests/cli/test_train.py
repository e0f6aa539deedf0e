"""train up to the plan: what --dry-run prints and writes, what a real run refuses before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openclaw_cli.commands.train import train
from openclaw_cli.completion import complete_key, complete_profile, complete_run
from openclaw_cli.output import use
from openclaw_core.errors import UsageError, UsageFindings
from openclaw_core.run.runs import create_run


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_dry_run_as_json_prints_only_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    use("json")
    train("qwen3-4b-topk", dry_run=True)
    body = json.loads(capsys.readouterr().out)
    assert body["roles"]["teacher"]["processes"][0]["devices"] == [7]
    assert {"objective", "batch", "sampling", "logprobs", "staleness", "configuration", "host_bytes"} <= set(body)
    assert list(tmp_path.iterdir()) == []


def test_dry_run_for_people_prints_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    use("human")
    train("qwen3-4b-topk", ["loss.k=8"], dry_run=True)
    shown = capsys.readouterr()
    for part in (
        "Hybrid",
        "node 0: 0, 1, 2, 3",
        "tensor 4 + sequence x data 1",
        "optimizer",
        "K = 8",
        "--set",
        "models/qwen3-4b.yaml",
    ):
        assert part in shown.out
    assert "student.hf is not given" in shown.err
    assert json.loads((tmp_path / "runs/plan-qwen3-4b-topk.json").read_text())["configuration"]["loss.k"]["origin"] == "--set"


def test_dry_run_writes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    use("quiet")
    train("tiny-cpu", dry_run=True, output=tmp_path / "deep/plan.json")
    assert json.loads((tmp_path / "deep/plan.json").read_text())["profile"] == "tiny-cpu"
    assert capsys.readouterr().out.startswith("Hybrid: ")


def test_a_real_run_refuses_what_is_missing_before_it_starts(tmp_path: Path) -> None:
    use("human")
    with pytest.raises(UsageFindings) as caught:
        train("qwen3-4b-topk", ["student.hf=/nowhere", "proxy.api_key_env=NO_SUCH_KEY"])
    assert "/nowhere" in str(caught.value)
    assert "NO_SUCH_KEY" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "No profile is given"),
        ({"profile": "tiny-cpu", "resume": "runs/x"}, "exclude each other"),
        ({"profile": "tiny-cpu", "output": Path("x")}, "--output goes with --dry-run"),
        ({"resume": "runs/none"}, "There is no run"),
    ],
)
def test_flags_that_contradict(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        train(**arguments)  # type: ignore[arg-type]


def test_resume_takes_the_runs_own_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from openclaw_core.config.load import load_profile

    run = create_run(tmp_path / "runs", "mine")
    run.config.write_text(load_profile("tiny-cpu", ["loss.k=7"], {}).to_yaml())
    use("json")
    train(resume="mine", overrides=["train.steps=90", "partition.devices_per_node=9"], dry_run=True)
    body = json.loads(capsys.readouterr().out)
    assert body["profile"] == "mine"
    assert body["configuration"]["loss.k"]["value"] == 7
    assert body["configuration"]["train.steps"] == {"value": 90, "origin": "--set"}
    with pytest.raises(UsageFindings, match=r"train\.dtype was 'fp32'"):
        train(resume="mine", overrides=["train.dtype=bf16"], dry_run=True)


def test_completion(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("")
    create_run(tmp_path / "runs", "first")
    assert complete_profile("tiny") == ["tiny-cpu"]
    assert complete_profile("own") == ["own.yaml"]
    assert complete_run("") == ["runs/first"]
    assert complete_run("runs/f") == ["runs/first"]
    assert complete_key("loss.w_") == ["loss.w_rl=", "loss.w_opd="]
    assert complete_key("loss.subset=t") == ["loss.subset=teacher"]
    assert complete_key("nope=") == []


def test_a_plan_that_can_not_be_written_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    use("human")
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "file" / "plan.json"):
        with pytest.raises(OSError, match=tmp_path.name):
            train("tiny-cpu", dry_run=True, output=place)
    assert capsys.readouterr().out == ""
