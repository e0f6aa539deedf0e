"""The command as a user calls it: streams, exit codes, sentences."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from openclaw_cli.app import app


def openclaw(*arguments: object):
    return CliRunner().invoke(app, ["convert-ckpt", *map(str, arguments)])


def test_there_and_back(make_hf, tmp_path):
    source = make_hf(tie_word_embeddings=False, change=lambda t: t.update({"mtp.x": t["model.norm.weight"].clone()}))
    there = openclaw(source, tmp_path / "td", "--tp", 4, "--allow", "mtp.*", "--expect", "layers=3", "--json")
    assert there.exit_code == 0, there.stderr
    result = json.loads(there.stdout)
    assert result["verified"] is True
    assert result["vocabulary"] == {"real": 200, "padded": 512}
    assert result["left_out"] == {"mtp.x": "allowed to be left out"}
    assert all(entry["equal"] and len(entry["sha256"]) == 64 for entry in result["tensors"].values())
    back = openclaw(tmp_path / "td", tmp_path / "back")
    assert back.exit_code == 0
    assert "all 36 tensors bitwise equal" in back.stdout
    assert "✓ 3/3" in back.stdout
    assert f"sglang.launch_server --model-path {tmp_path / 'back'}" in back.stdout.replace("\n", "")
    assert re.search(r"GB in [\d.]+ s \([\d,]+ MB/s\), peak memory [\d.]+ GB", back.stdout)
    assert back.stderr == ""


def test_a_dry_run_writes_nothing(make_hf, tmp_path):
    shown = openclaw(make_hf(), tmp_path / "td", "--dry-run")
    assert shown.exit_code == 0
    assert "base 1e+06" in shown.stdout
    assert "GB on disk" in shown.stdout
    assert "whatever the model's size" in shown.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]


def test_a_dry_run_finds_what_the_real_run_would(make_hf, tmp_path):
    source = make_hf()
    assert openclaw(source, tmp_path / "td").exit_code == 0
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("dear")
    for arguments, said in (
        ((tmp_path / "td",), "td exists. Choose another place, or pass --overwrite."),
        ((tmp_path / "home",), "home exists."),
        ((tmp_path / "home", "--overwrite"), "home isn't a checkpoint, so it isn't overwritten."),
    ):
        real, dry = openclaw(source, *arguments), openclaw(source, *arguments, "--dry-run")
        assert (real.exit_code, real.stderr) == (dry.exit_code, dry.stderr)
        assert said in dry.stderr
        assert dry.stdout == ""
    dry = openclaw(source, tmp_path / "home" / "diary.txt" / "td", "--dry-run")
    assert (dry.exit_code, dry.stderr) == (
        1,
        f"error: {tmp_path}/home/diary.txt is no folder. Choose a place you can write to.\n",
    )
    assert openclaw(source, tmp_path / "td", "--overwrite", "--dry-run").exit_code == 0
    assert (tmp_path / "home" / "diary.txt").read_text() == "dear"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere", "x"], 2, "error: SRC nowhere doesn't exist. Check the path."),
        (["org/model", "x"], 2, "Download it first: `hf download"),
        (["hf", "/proc/x"], 1, "error: /proc/x can't be made: "),
        (["hf", "x", "--expect", "layers"], 2, "error: --expect 'layers' isn't FIELD=VALUE. Write it as"),
        (["hf", "x", "--tp", "0"], 2, "error: Tensor-parallel size 0"),
        (["hf", "hf/x"], 2, "lie in each other"),
        (["hf", "x", "--to", "hf"], 2, "already is a Hugging Face folder"),
        (["hf", "full"], 2, "full exists. Choose another place, or pass --overwrite."),
    ],
)
def test_sentences(make_hf, tmp_path, monkeypatch, arguments, code, said):
    monkeypatch.chdir(tmp_path)
    make_hf()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "config.json").write_text("{}")
    failed = openclaw(*arguments)
    assert failed.exit_code == code
    assert said in failed.stderr
    assert failed.stdout == ""
    assert failed.stderr.count("\n") == 1
    assert not (tmp_path / "x").exists()
