"""Each check sees its own fault, names both values, and reads each model from its own checkpoint."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.torch_dist import TorchDistReader, resolve
from openclaw_core.teacher.compat import CHECKS, validate
from openclaw_core.teacher.pair import Use
from openclaw_core.teacher.tokens import read_tokenizer

tools = runpy.run_path(str(Path(__file__).parents[1] / "checkpoint" / "conftest.py"))
TITLES = [title for title, _, _ in CHECKS]


@pytest.fixture
def make(tmp_path):
    def made(name: str, family: str = "qwen3", **changes) -> Path:
        cfg = tools["config"](family, **changes)
        return tools["write_folder"](tmp_path / name, cfg, tools["weights"](cfg))

    return made


def edit(path: Path, change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def states(report) -> dict[str, str]:
    return {check.title: check.state for check in report.checks}


def only(report, title: str, state: str):
    """The one check that isn't ok."""
    assert {name: found for name, found in states(report).items() if found not in ("ok", "skipped")} == {title: state}
    return next(check for check in report.checks if check.title == title)


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


def test_a_converted_teacher_is_read_from_itself(make, tmp_path):
    student, teacher = make("s"), make("t", num_hidden_layers=2, tie_word_embeddings=False)
    convert(plan_conversion(teacher, tmp_path / "td", tp=4))
    report = validate(str(student), str(tmp_path / "td"), Use(teacher_tp=2))
    assert not report.problems
    check = next(check for check in report.checks if check.title.startswith("Vocabulary"))
    assert check.teacher == "200 real, 256 at TP 2, 512 stored"


@pytest.mark.parametrize("broken", ["truncated", "no shard", "partial", "missing", "other layers"])
def test_a_checkpoint_that_is_not_whole(make, tmp_path, broken):
    student, teacher = make("s"), make("t")
    path = teacher
    if broken == "truncated":
        weights = teacher / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-2])
    elif broken == "no shard":
        (teacher / "model.safetensors").unlink()
    elif broken == "partial":
        convert(plan_conversion(teacher, tmp_path / "td"))
        (resolve(tmp_path / "td") / ".metadata").unlink()
        path = tmp_path / "td"
    elif broken == "missing":
        path = tmp_path / "nowhere"
    else:
        edit(teacher / "config.json", lambda value: value.update(num_hidden_layers=2))
    check = only(validate(str(student), str(path)), "Teacher's checkpoint is whole", "problem")
    assert check.finding
    assert check.remedy


def test_other_bytes_under_one_id(make):
    student, teacher = make("s"), make("t")

    def swap(value):
        vocab = value["model"]["vocab"]
        vocab["t7"], vocab["t8"] = vocab["t8"], vocab["t7"]

    edit(teacher / "tokenizer.json", swap)
    check = only(validate(str(student), str(teacher)), "Token ids mean the same bytes", "problem")
    assert "2 ids differ (7: b't7' and b't8', 8: b't8' and b't7')" in check.finding


def test_ids_of_one_side_alone_are_a_warning(make):
    student, teacher = make("s"), make("t")
    edit(
        student / "tokenizer.json",
        lambda value: value["added_tokens"].append({"id": 195, "content": "<think>", "special": False}),
    )
    check = only(validate(str(student), str(teacher)), "Token ids mean the same bytes", "warning")
    assert "Only the student has 1 ids ('<think>')" in check.finding


def test_another_way_to_cut(make):
    student, teacher = make("s"), make("t")
    edit(teacher / "tokenizer.json", lambda value: value["model"].update(merges=["t 1"]))
    only(validate(str(student), str(teacher)), "Text is cut the same way", "warning")


@pytest.mark.parametrize(
    ("ids", "state", "said"),
    [(None, "problem", "Nothing ends"), ([7000], "problem", "lacks: 7000"), ([190], "warning", "eos_token '<|im_end|>'")],
)
def test_ends_of_replies(make, ids, state, said):
    student, teacher = make("s"), make("t")
    edit(student / "generation_config.json", lambda value: value.update(eos_token_id=ids))
    assert said in only(validate(str(student), str(teacher)), "Special tokens", state).finding


def test_templates(make):
    student, teacher = make("s"), make("t")
    (teacher / "chat_template.jinja").write_text("{{ other }}")
    only(validate(str(student), str(teacher)), "Chat template", "warning")
    edit(student / "tokenizer_config.json", lambda value: value.pop("chat_template"))
    only(validate(str(student), str(teacher)), "Chat template", "problem")


def test_rows(make):
    student, teacher = make("s"), make("t", vocab_size=191)
    report = validate(str(student), str(teacher))
    check = next(check for check in report.checks if check.title == "Every id has an embedding row")
    assert check.state == "problem"
    assert check.finding == "The teacher has 191 rows, its tokenizer 192 ids."
    assert states(report)["Vocabulary, real and padded"] == "warning"


def test_real_sizes_may_differ_with_a_warning(make):
    only(validate(str(make("s")), str(make("t", vocab_size=256))), "Vocabulary, real and padded", "warning")


def test_lengths(make):
    student, teacher = make("s"), make("t")
    assert not validate(str(student), str(teacher), Use(prompt_and_reply=200, hint=56)).problems
    check = only(validate(str(student), str(teacher), Use(prompt_and_reply=200, hint=57)), "Context length", "problem")
    assert check.finding == "The teacher needs 257 tokens and has 256 positions."
    only(validate(str(student), str(make("short", max_position_embeddings=128))), "Context length", "warning")


def test_dtypes_and_parallel_sizes(make):
    student, teacher = make("s"), make("t")
    only(validate(str(student), str(teacher), Use(dtype="fp16")), "Dtype", "warning")
    check = only(
        validate(str(student), str(teacher), Use(teacher_tp=4, student_pp=2)), "Parallel sizes divide the models", "problem"
    )
    assert check.finding == "The student's layers (3) can't be split by 2. The teacher's k and v heads (2) can't be split by 4."


def test_a_rope_base_that_differs_between_places_of_one_model(make, tmp_path):
    student, teacher = make("s"), make("t")
    convert(plan_conversion(teacher, tmp_path / "td"))
    edit(tmp_path / "td" / "hf" / "config.json", lambda value: value.update(rope_theta=5e6))
    check = only(validate(str(student), str(tmp_path / "td")), "One rope base per model", "problem")
    assert "5e+06 (rope_theta), 1e+06 (manifest)" in check.finding
    check = only(validate(str(student), str(tmp_path / "td"), teacher_hf=str(teacher)), "One rope base per model", "problem")
    assert "5e+06 (carried config)" in check.finding


def test_deep_sees_one_changed_bit(make, tmp_path):
    student = make("s")
    convert(plan_conversion(student, tmp_path / "td"))
    assert states(validate(str(tmp_path / "td"), str(student)))["Weights as converted"] == "skipped"
    assert states(validate(str(tmp_path / "td"), str(student), Use(deep=True)))["Weights as converted"] == "ok"
    folder = resolve(tmp_path / "td")
    chunk = TorchDistReader(folder).contents.tensors["decoder.layers.self_attention.linear_proj.weight"].chunks[2]
    with (folder / chunk.file).open("r+b") as file:
        file.seek(chunk.start + chunk.length // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    check = only(validate(str(tmp_path / "td"), str(student), Use(deep=True)), "Weights as converted", "problem")
    assert "model.layers.2.self_attn.o_proj.weight changed" in check.finding


def test_unreadable_tokenizers_and_configs_are_findings(make):
    student, teacher = make("s"), make("t")
    (teacher / "tokenizer.json").write_text("{")
    only(validate(str(student), str(teacher)), "Token ids mean the same bytes", "problem")
    (teacher / "config.json").write_text("{}")
    report = validate(str(student), str(teacher))
    assert "model type None isn't supported" in report.problems[0].finding
    assert {fact.teacher for fact in report.facts} == {"?"}


def test_byte_level_tokens_are_bytes(make):
    student = make("s")

    def change(value):
        value["decoder"] = {"type": "ByteLevel"}
        value["model"]["vocab"] = {"Ġhi": 0, "é": 1, "ł": 2}

    edit(student / "tokenizer.json", change)
    tokens = read_tokenizer(student).tokens
    assert [tokens[number] for number in range(3)] == [b" hi", b"\xe9", b"\xa0"]


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
    none = CliRunner().invoke(app, ["validate"])
    assert none.exit_code == 2
    assert none.stderr.startswith("error: There is no student")
