"""One rope base and one architecture in all places that state a model."""

from __future__ import annotations

import runpy
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.teacher.compat import validate

pairs = runpy.run_path(str(Path(__file__).with_name("pairs.py")))
edit, only, ARGUMENTS = pairs["edit"], pairs["only"], pairs["ARGUMENTS"]


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
