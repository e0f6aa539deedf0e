"""A run's plan checks its teacher as `validate` does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from openclaw_core.config.load import load_profile
from openclaw_core.config.sources import ASSETS
from openclaw_core.run.plan import IllegalPlan, Plan, make_plan

HF = ASSETS / "tiny-qwen3"


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HF, tmp_path / "teacher"))


def plan_of(*overrides: str) -> Plan:
    return make_plan(load_profile("tiny-cpu", overrides, {}))


def swap_two_ids(folder: Path) -> None:
    path = folder / "tokenizer.json"
    stated = json.loads(path.read_text())
    vocab = stated["model"]["vocab"]
    first, second = (token for token, number in vocab.items() if number in (20, 21))
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(stated))


def test_a_teacher_whose_ids_mean_other_bytes_is_refused(teacher: Path) -> None:
    swap_two_ids(teacher)
    with pytest.raises(IllegalPlan) as caught:
        plan_of(f"teacher.hf={teacher}")
    assert caught.value.exit_code == 2
    told = [what for what, _ in caught.value.findings]
    start = "teacher.hf against student.hf: 5. Token ids mean the same bytes: 2 ids differ (20: "
    assert any(what.startswith(start) for what in told), told


def test_a_doubt_stands_in_the_plan(teacher: Path) -> None:
    (teacher / "chat_template.jinja").write_text("{{ messages[0].content }}")
    warned = [what for what, _ in plan_of(f"teacher.hf={teacher}").warnings]
    assert [what for what in warned if "9. Chat template" in what], warned


def test_a_fit_teacher_is_planned_without_a_word(teacher: Path) -> None:
    assert plan_of(f"teacher.hf={teacher}").warnings == plan_of().warnings


def test_a_teacher_that_only_some_hints_fit_is_used_and_told(teacher: Path) -> None:
    path = teacher / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 1100}))
    warned = [what for what, _ in plan_of(f"teacher.hf={teacher}").warnings]
    assert [what for what in warned if "12. Context length" in what and "left out of training" in what], warned


def test_a_teacher_that_no_term_uses_is_not_compared(teacher: Path) -> None:
    swap_two_ids(teacher)
    assert plan_of(f"teacher.hf={teacher}", "loss.w_opd=0").objective.startswith("GRPO only")


def test_a_teacher_that_is_missing_is_told_once() -> None:
    warned = [what for what, _ in plan_of("teacher.hf=/nowhere").warnings]
    assert [what for what in warned if "/nowhere" in what] == ["teacher.hf is /nowhere, which is no folder; a real run needs it."]
