"""Token ids, the way text is cut, special tokens and templates of both tokenizers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from openclaw_core.teacher.compat import validate

pairs = runpy.run_path(str(Path(__file__).with_name("pairs.py")))
edit, only, PROBES, MERGES, FLAGS = pairs["edit"], pairs["only"], pairs["PROBES"], pairs["MERGES"], pairs["FLAGS"]


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


def test_merges_are_the_same_in_either_form(make):
    student, teacher = make("s"), make("t")
    edit(teacher / "tokenizer.json", lambda value: value["model"].update(merges=[" ".join(pair) for pair in MERGES]))
    assert not validate(str(student), str(teacher)).warnings


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
