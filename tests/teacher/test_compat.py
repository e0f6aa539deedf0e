"""What the whole report says of a pair, whatever its files hold, and the command."""

from __future__ import annotations

import json
import runpy
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.teacher.compat import CHECKS, validate

pairs = runpy.run_path(str(Path(__file__).with_name("pairs.py")))
edit, of, only, ARGUMENTS = pairs["edit"], pairs["of"], pairs["only"], pairs["ARGUMENTS"]


def test_a_fit_pair_of_different_sizes(make):
    report = validate(str(make("s")), str(make("t", hidden_size=64, num_hidden_layers=5, rope_theta=5e6)))
    assert not report.problems
    assert not report.warnings
    assert [check.number for check in report.checks] == list(range(1, len(CHECKS) + 1))
    facts = {fact.name: (fact.student, fact.teacher, fact.same) for fact in report.facts}
    assert facts["hidden"] == ("32", "64", False)
    assert facts["layers"] == ("3", "5", False)
    assert facts["rope_theta"] == ("1e+06", "5e+06", False)
    assert facts["heads"] == ("4", "4", True)


def test_unreadable_tokenizers_and_configs_are_findings(make):
    student, teacher = make("s"), make("t")
    (teacher / "tokenizer.json").write_text("{")
    only(validate(str(student), str(teacher)), "Token ids mean the same bytes", "problem")
    (teacher / "config.json").write_text("{}")
    report = validate(str(student), str(teacher))
    assert "model type None isn't supported" in report.problems[0].finding
    assert {fact.teacher for fact in report.facts} == {"?"}


DEEP = b'{"a":' + b"[" * 100_000


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", DEEP, "config.json can't be read as JSON: maximum recursion depth"),
        ("config.json", {"quantization_config": True}, "The weights are quantised (?)"),
        ("tokenizer.json", DEEP, "tokenizer.json can't be read as JSON: maximum recursion depth"),
        ("tokenizer.json", {"model": {"vocab": {"a": None}}}, "tokenizer.json isn't a tokenizer: None is no id"),
        ("tokenizer.json", {"added_tokens": [{"id": -1, "content": "x"}]}, "tokenizer.json isn't a tokenizer: -1 is no id"),
        ("tokenizer_config.json", {"chat_template": [1]}, "The student has no chat template"),
        ("tokenizer_config.json", {"chat_template": {"a": "b"}}, "chat_template is {'a': 'b'}, not a text"),
        ("tokenizer_config.json", {"eos_token": {"content": 3}}, "eos_token is 3, not a text"),
        ("generation_config.json", {"eos_token_id": "x"}, "generation_config.json: eos_token_id is 'x', not an id or a list"),
        ("generation_config.json", {"eos_token_id": [{}]}, "eos_token_id is [{}], not an id or a list of ids"),
        ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja can't be read: 'utf-8' codec"),
        ("model.safetensors", b"\x10" + bytes(7) + b"[" * 16, "model.safetensors"),
    ],
)
def test_files_that_hold_anything_are_findings(make, name, content, said):
    student, teacher = make("s"), make("t")
    if isinstance(content, bytes):
        (student / name).write_bytes(content)
    else:
        edit(student / name, lambda value: value.update(content))
    report = validate(str(student), str(teacher))
    assert said in " ".join(check.finding for check in report.problems)


def test_a_model_without_a_tokenizer_is_not_passed_over(make, tmp_path):
    student, raw = make("s"), tmp_path / "raw"
    convert(plan_conversion(student, raw))
    shutil.rmtree(raw / "hf")
    (raw / "openclaw.json").unlink()
    torch.save({"args": Namespace(**ARGUMENTS)}, raw / "release" / "common.pt")
    report = validate(str(student), str(raw))
    check = of(report, "Token ids mean the same bytes")
    assert (check.state, check.remedy) == ("warning", "Name its Hugging Face folder: --teacher-hf FOLDER.")
    assert check.finding == f"{raw} carries no tokenizer, so the teacher's ids can't be compared."
    assert not report.problems
    assert of(report, "One rope base per model").source.endswith(f"megatron's arguments in {raw}/release")
    assert of(validate(str(raw), str(student)), "Token ids mean the same bytes").state == "problem"
    assert not validate(str(student), str(raw), teacher_hf=str(student)).warnings


def test_the_command(make):
    student, teacher = make("s"), make("t")
    call = ["validate", "--student", str(student), "--teacher", str(teacher)]
    good = CliRunner().invoke(app, [*call, "--json"])
    assert good.exit_code == 0, good.stderr
    assert json.loads(good.stdout)["state"] == "ok"
    shutil.rmtree(teacher)
    bad = CliRunner().invoke(app, call)
    assert bad.exit_code == 2
    assert "doesn't exist" in bad.stderr
    teacher.mkdir()
    bad = CliRunner().invoke(app, call)
    assert bad.exit_code == 1
    assert "holds no checkpoint" in bad.stdout
    empty = CliRunner().invoke(app, ["validate", "--student", "", "--teacher", str(teacher)])
    assert (empty.exit_code, empty.stdout) == (2, "")
    assert "The student is named by an empty path" in empty.stderr
    none = CliRunner().invoke(app, ["validate"])
    assert none.exit_code == 2
    assert none.stderr.startswith("error: There is no student")


def test_a_profile_says_what_the_pair_will_be_asked_for(make, tmp_path):
    student, teacher = make("s"), make("t")
    profile = tmp_path / "own.yaml"
    profile.write_text(
        "extends: tiny-cpu\nrollout: {context_length: 200}\njudge: {max_tokens: 100}\ntrain: {dtype: fp16}\n"
        "partition: {actor: {devices: 2, pipeline_parallel: 2}, teacher: {devices: 4, tensor_parallel: 4}}\n"
    )
    call = ["validate", "--student", str(student), "--teacher", str(teacher), "--profile", str(profile), "--json"]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 1, done.stderr
    checks = {check["title"]: check for check in json.loads(done.stdout)["checks"]}
    context, dtype, sizes = (checks[name] for name in ("Context length", "Dtype", "Parallel sizes divide the models"))
    assert (context["student"], context["teacher"]) == ("200 of 256", "300 of 256")
    said = "The teacher needs 300 tokens and has 256 positions. A candidate of more than 256 is left out of training."
    assert (context["state"], context["finding"]) == ("warning", said)
    assert (dtype["state"], dtype["student"]) == ("warning", "bfloat16 -> float16")
    assert (sizes["student"], sizes["teacher"]) == ("TP 1, PP 2", "TP 4, PP 1")
    assert (
        "The student's layers (3) can't be split by 2. The teacher's k and v heads (2) can't be split by 4." in sizes["finding"]
    )
