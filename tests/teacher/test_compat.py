"""Each check sees its own fault, names both values, and reads each model from its own checkpoint."""

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
from openclaw_core.checkpoint.torch_dist import TorchDistReader, resolve
from openclaw_core.teacher.compat import CHECKS, validate
from openclaw_core.teacher.pair import Use
from openclaw_core.teacher.probes import TEXTS
from openclaw_core.teacher.tokens import read_tokenizer

tools = runpy.run_path(str(Path(__file__).parents[1] / "checkpoint" / "conftest.py"))
PROBES = "Probe texts become the same ids"
MERGES = [["t", "h"], ["th", "e"], ["o", "w"], ["l", "ow"], ["i", "n"]]
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def tokenizer(path: Path) -> None:
    """In place of the folder's bare vocabulary one that the library loads: characters, merges of them, and more to fill it."""
    value = json.loads(path.read_text())
    words = [chr(code) for code in range(33, 127)] + ["".join(pair) for pair in MERGES]
    words += [f"t{number}" for number in range(100, 290 - len(words))]
    value["model"] = {"type": "BPE", "vocab": {word: number for number, word in enumerate(words)}, "merges": MERGES}
    value["added_tokens"] = [{**FLAGS, **token} for token in value["added_tokens"]]
    path.write_text(json.dumps({"version": "1.0", **value}))


@pytest.fixture
def make(tmp_path):
    def made(name: str, family: str = "qwen3", **changes) -> Path:
        cfg = tools["config"](family, **changes)
        folder = tools["write_folder"](tmp_path / name, cfg, tools["weights"](cfg))
        tokenizer(folder / "tokenizer.json")
        return folder

    return made


def edit(path: Path, change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def states(report) -> dict[str, str]:
    return {check.title: check.state for check in report.checks}


def of(report, title: str):
    return next(check for check in report.checks if check.title == title)


def only(report, title: str, state: str, *beside: str):
    """The one check that isn't ok; those of the titles beside warn with it."""
    found = {name: found for name, found in states(report).items() if found not in ("ok", "skipped")}
    assert found == {title: state, **dict.fromkeys(beside, "warning")}
    return of(report, title)


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
        vocab["t107"], vocab["t108"] = vocab["t108"], vocab["t107"]

    edit(teacher / "tokenizer.json", swap)
    check = only(validate(str(student), str(teacher)), "Token ids mean the same bytes", "problem")
    assert "2 ids differ (106: b't107' and b't108', 107: b't108' and b't107')" in check.finding


def test_ids_of_one_side_alone_are_a_warning(make):
    student, teacher = make("s"), make("t")
    edit(
        student / "tokenizer.json",
        lambda value: value["added_tokens"].append({**FLAGS, "id": 192, "content": "<think>", "special": False}),
    )
    check = only(validate(str(student), str(teacher)), "Token ids mean the same bytes", "warning", PROBES)
    assert "Only the student has 1 id ('<think>')" in check.finding


@pytest.mark.parametrize(
    ("change", "said", "matters"),
    [
        (lambda value: value["model"]["merges"].pop(1), "Only the student has 1 merge ('th e').", True),
        (lambda value: value["model"]["merges"].reverse(), "The merges have another order, from the 1. on.", False),
        (lambda value: value["model"].update(fuse_unk=True), "The models' settings differ.", False),
        (lambda value: value.update(normalizer={"type": "Lowercase"}), "The normalizers differ.", True),
        (lambda value: value.update(pre_tokenizer={"type": "Whitespace"}), "The pre-tokenizers differ.", False),
        (
            lambda value: value["added_tokens"][0].update(single_word=True),
            "1 added token matched in another way: '<|im_start|>'.",
            True,
        ),
    ],
)
def test_another_way_to_cut(make, change, said, matters):
    student, teacher = make("s"), make("t")
    edit(teacher / "tokenizer.json", change)
    check = only(validate(str(student), str(teacher)), "Text is cut the same way", "warning", *[PROBES] * matters)
    assert said in check.finding


def test_probe_texts_show_the_first_place_that_differs(make):
    student, teacher = make("s"), make("t")
    edit(teacher / "tokenizer.json", lambda value: value["model"]["merges"].pop(1))
    check = of(validate(str(student), str(teacher)), PROBES)
    ids = json.loads((student / "tokenizer.json").read_text())["model"]["vocab"]
    texts = [text for text in TEXTS if "the" in text]
    assert f"{len(texts)} of {len(TEXTS)} texts become other ids, the first 'The quick brown fox" in check.finding
    whole, cut = [ids[word] for word in ("the", "l", "a", "z")], [ids[word] for word in ("th", "e", "l", "a")]
    assert f"on {whole} and {cut}." in check.finding


def test_merges_are_the_same_in_either_form(make):
    student, teacher = make("s"), make("t")
    edit(teacher / "tokenizer.json", lambda value: value["model"].update(merges=[" ".join(pair) for pair in MERGES]))
    assert not validate(str(student), str(teacher)).warnings


def test_a_tokenizer_that_the_library_cannot_load(make):
    student, teacher = make("s"), make("t")
    for place, state in ((teacher, "warning"), (student, "problem")):
        edit(place / "tokenizer.json", lambda value: value["added_tokens"][0].pop("lstrip"))
        check = only(validate(str(student), str(teacher)), PROBES, state)
        assert f"{place}/tokenizer.json can't be loaded by the tokenizers library: missing field" in check.finding


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
    check = only(validate(str(student), str(teacher), Use(prompt_and_reply=257, hint=1)), "Context length", "problem")
    needs = "The student needs 257 tokens and has 256 positions. The teacher needs 258 tokens and has 256 positions."
    assert check.finding == needs
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


@pytest.mark.parametrize(
    ("place", "field", "said"),
    [
        ("config", "rms_norm_eps", "The teacher's norm_eps: {hf} says 0.001, the manifest says 1e-06."),
        ("arguments", "norm_epsilon", "The teacher's norm_eps: {hf} says 1e-06, megatron's arguments says 0.001."),
        ("named", "rms_norm_eps", "The teacher's norm_eps: {named} says 0.001, the manifest says 1e-06."),
    ],
)
def test_an_architecture_that_differs_between_places_of_one_model(make, tmp_path, place, field, said):
    student, teacher = make("s"), make("t")
    convert(plan_conversion(teacher, tmp_path / "td"))
    if place == "arguments":
        torch.save({"args": Namespace(**ARGUMENTS | {field: 1e-3})}, tmp_path / "td" / "release" / "common.pt")
    else:
        edit((teacher if place == "named" else tmp_path / "td" / "hf") / "config.json", lambda value: value.update({field: 1e-3}))
    named = str(teacher) if place == "named" else None
    check = only(validate(str(student), str(tmp_path / "td"), teacher_hf=named), "One architecture per model", "problem")
    assert said.format(hf=tmp_path / "td" / "hf", named=teacher) in check.finding
    assert check.remedy


def test_a_carried_config_that_cannot_be_read_is_told_though_another_is_named(make, tmp_path):
    student = make("s")
    convert(plan_conversion(student, tmp_path / "td"))
    (tmp_path / "td" / "hf" / "config.json").write_text("{")
    check = only(validate(str(student), str(tmp_path / "td"), teacher_hf=str(student)), "One architecture per model", "problem")
    assert "hf/config.json can't be read as JSON" in check.finding


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


ARGUMENTS = {
    "num_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 16,
    "ffn_hidden_size": 48, "padded_vocab_size": 256, "vocab_size": 200, "rotary_base": 1000000, "norm_epsilon": 1e-6,
    "max_position_embeddings": 256, "swiglu": True, "normalization": "RMSNorm", "qk_layernorm": True,
    "untie_embeddings_and_output_weights": False,
}  # fmt: skip


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
    empty = CliRunner().invoke(app, ["validate", "--student", "", "--teacher", str(teacher)])
    assert (empty.exit_code, empty.stdout) == (2, "")
    assert "The student is named by an empty path" in empty.stderr
    none = CliRunner().invoke(app, ["validate"])
    assert none.exit_code == 2
    assert none.stderr.startswith("error: There is no student")


@pytest.mark.parametrize(
    ("need", "scaling", "state"),
    [(256, None, "warning"), (257, None, "problem"), (257, {"rope_type": "linear", "factor": 2.0}, "warning"), (156, None, "ok")],
)
def test_a_context_that_a_run_can_use_is_no_problem(make, need, scaling, state):
    changes = {"rope_scaling": scaling} if scaling else {}
    report = validate(str(make("s", **changes)), str(make("t", **changes)), Use(prompt_and_reply=need, hint=100))
    assert of(report, "Context length").state == state


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
