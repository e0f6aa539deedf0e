"""Checkpoints that are whole or not, rows, lengths, dtypes and sizes: each with both values."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.torch_dist import TorchDistReader, resolve
from openclaw_core.teacher.compat import validate
from openclaw_core.teacher.pair import Use

pairs = runpy.run_path(str(Path(__file__).with_name("pairs.py")))
edit, states, of, only = pairs["edit"], pairs["states"], pairs["of"], pairs["only"]


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
    check = only(validate(str(student), str(teacher), Use(prompt_and_reply=257, hint=1)), "Context length", "problem")
    needs = "The student needs 257 tokens and has 256 positions. The teacher needs 258 tokens and has 256 positions."
    assert check.finding == needs
    only(validate(str(student), str(make("short", max_position_embeddings=128))), "Context length", "warning")


@pytest.mark.parametrize(
    ("need", "scaling", "state"),
    [(256, None, "warning"), (257, None, "problem"), (257, {"rope_type": "linear", "factor": 2.0}, "warning"), (156, None, "ok")],
)
def test_a_context_that_a_run_can_use_is_no_problem(make, need, scaling, state):
    changes = {"rope_scaling": scaling} if scaling else {}
    report = validate(str(make("s", **changes)), str(make("t", **changes)), Use(prompt_and_reply=need, hint=100))
    assert of(report, "Context length").state == state


def test_dtypes_and_parallel_sizes(make):
    student, teacher = make("s"), make("t")
    only(validate(str(student), str(teacher), Use(dtype="fp16")), "Dtype", "warning")
    check = only(
        validate(str(student), str(teacher), Use(teacher_tp=4, student_pp=2)), "Parallel sizes divide the models", "problem"
    )
    assert check.finding == "The student's layers (3) can't be split by 2. The teacher's k and v heads (2) can't be split by 4."


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


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("openclaw.json", {"architecture": [1]}, "its architecture is no object"),
        ("openclaw.json", {"tensors": {"a": 3}}, "its tensors aren't each described by"),
        ("latest_checkpointed_iteration.txt", "²".encode(), ""),
        ("latest_checkpointed_iteration.txt", b"9" * 30, "which isn't there completely"),
        ("latest_checkpointed_iteration.txt", None, ""),
        ("release/common.pt", b"junk", "common.pt can't be read safely"),
        ("release/.metadata", b"\x80\x04\x8c\x02\xff\xfe.", "can't be read"),
        ("release/__0_1.distcp", None, "half-written: __0_1.distcp is missing"),
    ],
)
def test_a_torch_dist_that_holds_anything_is_a_finding(make, tmp_path, name, content, said):
    student = make("s")
    convert(plan_conversion(student, tmp_path / "td"))
    path = tmp_path / "td" / name
    if isinstance(content, dict):
        edit(path, lambda value: value.update(content))
    else:
        path.unlink()
        path.write_bytes(content) if content is not None else path.mkdir()
    [problem] = validate(str(student), str(tmp_path / "td")).problems
    assert problem.title == "Teacher's checkpoint is whole"
    assert said in problem.finding
    assert problem.finding.count(problem.finding[:60]) == 1, "one cause, told once"
    assert problem.remedy


def test_sizes_that_no_model_has_are_told_before_they_fill_the_memory(make):
    student, teacher = make("s"), make("t")
    edit(teacher / "config.json", lambda value: value.update(hidden_size=10**9, vocab_size=10**9))
    check = only(validate(str(student), str(teacher)), "Teacher's checkpoint is whole", "problem")
    assert "hidden_size=1000000000 is more than 1000000. vocab_size=1000000000 is more than 10000000." in check.finding
    assert check.remedy == "Take the config of the model's release."
