"""The command as a user calls it: streams, exit codes, sentences."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios

import pytest
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.config.schema import Config
from openclaw_core.run.sources import missing_sources

SLOWLY = """
import time
from openclaw_core.checkpoint import verify
from openclaw_cli.app import main
honest = verify.same_bits
verify.same_bits = lambda *pair: (time.sleep(0.02), honest(*pair))[1]
main()
"""
"""The command with so much to do that a bar is drawn more than once."""


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


def test_the_closing_line_is_what_train_takes(make_hf, tmp_path, monkeypatch):
    """Relative, and with a blank: what is printed can be pasted. Of a size that no trainer can split nothing is promised."""
    monkeypatch.chdir(tmp_path)
    make_hf("my model")
    line = openclaw("my model", "td").stdout.splitlines()[-1]
    words = shlex.split(line.removeprefix("Train from it: "))
    assert words[:4] == ["openclaw", "train", "--profile", "PROFILE"]
    student = {item.split("=", 1)[0].removeprefix("student."): item.split("=", 1)[1] for item in words[5::2]}
    assert student == {"hf": str(tmp_path / "my model"), "load": str(tmp_path / "td")}
    assert missing_sources(Config.model_validate({"student": student})) == []
    refused = openclaw("my model", "td3", "--tp", 3).stdout.splitlines()[-1]
    assert refused == "Train from it at another tensor-parallel size: 3 doesn't divide its 4 heads, 2 key-value heads."


def test_a_pattern_that_leaves_nothing_out_is_told(make_hf, tmp_path):
    source = make_hf(change=lambda t: t.update({"mtp.x": t["model.norm.weight"].clone()}))
    allowed, said = ("--allow", "mtp.*", "--allow", "model.norm.*"), "warning: --allow 'model.norm.*' leaves nothing out: "
    for arguments in ((source, tmp_path / "td", "--dry-run"), (source, tmp_path / "td"), (tmp_path / "td", "--verify-only")):
        done = openclaw(*arguments, *allowed)
        assert (done.exit_code, done.stderr.count("warning")) == (0, 1)
        assert said in done.stderr


def test_the_vocabulary_of_an_export_isnt_padded(make_hf, tmp_path):
    openclaw(make_hf(), tmp_path / "td")
    refused = openclaw(tmp_path / "td", tmp_path / "back", "--tp", "2")
    assert (refused.exit_code, (tmp_path / "back").exists()) == (2, False)
    assert "--tp has no effect on an export without --verify logits." in refused.stderr


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
        (
            (tmp_path / "home", "--overwrite"),
            "home wasn't made by a conversion (there is no openclaw.json), so --overwrite doesn't replace it.",
        ),
    ):
        real, dry = openclaw(source, *arguments), openclaw(source, *arguments, "--dry-run")
        assert (real.exit_code, real.stderr) == (dry.exit_code, dry.stderr)
        assert said in dry.stderr
        assert real.stdout == ""
        assert "GB on disk" in dry.stdout
    machine = openclaw(source, tmp_path / "td", "--dry-run", "--json")
    assert (machine.exit_code, json.loads(machine.stdout)["to"]) == (2, "torch_dist")
    dry = openclaw(source, tmp_path / "home" / "diary.txt" / "td", "--dry-run")
    assert (dry.exit_code, dry.stderr) == (
        1,
        f"error: {tmp_path}/home/diary.txt is no folder. Choose a place you can write to.\n",
    )
    replacing = openclaw(source, tmp_path / "td", "--overwrite", "--dry-run")
    assert replacing.exit_code == 0
    said = f"--overwrite would replace {tmp_path / 'td'}: torch_dist, converted from {source}."
    assert said in replacing.stdout
    machine = openclaw(source, tmp_path / "td", "--overwrite", "--dry-run", "--json")
    assert json.loads(machine.stdout)["replaces"] == {"kind": "torch_dist", "source": str(source)}
    (tmp_path / "td" / "thesis").mkdir()
    refused = openclaw(source, tmp_path / "td", "--overwrite", "--dry-run")
    assert (refused.exit_code, "would replace" in refused.stdout) == (1, False)
    assert (tmp_path / "home" / "diary.txt").read_text() == "dear"


def test_what_is_in_the_way_is_told_before_torch_is_imported(make_hf, tmp_path):
    source = make_hf()
    assert openclaw(source, tmp_path / "td").exit_code == 0
    make_hf("original")
    for target, flags, code in (("td", [], 2), ("original", [], 2), ("original", ["--overwrite"], 1)):
        arguments = ["convert-ckpt", str(source), str(tmp_path / target), *flags]
        program = f"import sys\nfrom openclaw_cli.app import main\nsys.argv[1:] = {arguments!r}\ntry:\n    main()\nfinally:\n"
        done = subprocess.run(
            [sys.executable, "-c", program + "    print('torch' in sys.modules)"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (code, "False\n"), done.stderr
        assert str(tmp_path / target) in done.stderr


def test_the_source_as_its_own_target_is_never_said_to_be_removed(make_hf, tmp_path):
    source = make_hf()
    for arguments in ((source, source), (source, tmp_path), (source, source, "--overwrite")):
        said = openclaw(*arguments).stderr
        assert "lie in each other" in said
        assert "remove" not in said


def on_a_terminal(*arguments: object) -> tuple[int, str, str]:
    """Runs the command with a terminal as its stderr; returns the exit code, stdout and what the terminal showed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    command = [sys.executable, "-c", SLOWLY, "convert-ckpt", *map(str, arguments)]
    with tempfile.TemporaryFile() as data:
        child = subprocess.Popen(command, stdout=data, stderr=theirs, env={**os.environ, "TERM": "xterm"})
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # a terminal nobody writes to any more reads as an error
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
        code = child.wait()
        data.seek(0)
        return code, data.read().decode(), shown.decode()


def test_a_terminal_sees_rate_and_time_left_and_nothing_stays(make_hf, tmp_path):
    source = make_hf(num_hidden_layers=12)
    code, data, shown = on_a_terminal(source, tmp_path / "td")
    assert code == 0
    assert "Writing and verifying" in shown
    assert re.search(r"[1-9]\d?%.*0:00:0\d.*[\d.]+/[\d.]+ kB.*[\d.]+ kB/s", shown)
    assert shown.rstrip().endswith("\x1b[2K")
    assert "Writing" not in data
    assert "tensors bitwise equal" in data
    assert "Verifying" in on_a_terminal(tmp_path / "td", "--verify-only")[2]
    assert "%" not in on_a_terminal(source, tmp_path / "other", "--quiet")[2]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere", "x"], 2, "error: SRC nowhere doesn't exist. Check the path."),
        (["hf", "x", "--verify-only"], 2, "error: DST x doesn't exist. Check the path."),
        (["x", "--verify-only"], 2, "error: DST x doesn't exist. Check the path."),
        (["nowhere", "hf", "--verify-only"], 2, "error: SRC nowhere doesn't exist. Check the path."),
        (["org/model", "x"], 2, "Download it first: `hf download"),
        (["hf", "/proc/x"], 1, "error: /proc/x can't be made: "),
        (["hf", "x", "--expect", "layers"], 2, "error: --expect 'layers' isn't FIELD=VALUE. Write it as"),
        (["hf", "x", "--expect", "a", "--expect", "b"], 2, "error: --expect 'a', 'b' isn't FIELD=VALUE. Write it as"),
        (["hf", "x", "--expect", "a=1", "--expect", "a=2"], 2, "error: --expect states a more than once. Leave one value."),
        (["hf", "x", "--tp", "0"], 2, "error: Tensor-parallel size 0"),
        (["hf", "hf/x"], 2, "lie in each other"),
        (["hf", "x", "--to", "hf"], 2, "already is a Hugging Face folder"),
        (["hf", "--verify-only", "--dtype", "fp16", "--overwrite"], 2, "--dtype, --overwrite has no effect with --verify-only."),
        (["hf", "--verify-only", "--tp", "2"], 2, "--tp has no effect with --verify-only."),
        (["hf", "--verify-only", "--no-verify"], 2, "--verify none has no effect with --verify-only."),
        (["hf", "x", "--verify", "logits", "--no-verify"], 2, "--no-verify and --verify logits contradict each other."),
        (["hf", "x", "--hf-config", "hf"], 2, "hf has its own config.json; nothing overrides it. Leave --hf-config out."),
        (["hf", "--list"], 2, "SRC has no effect with --list."),
        (["hf", ""], 2, "error: DST is named by an empty path. Name a folder."),
        (["hf", "full"], 2, "full exists. Choose another place, or remove it yourself."),
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
