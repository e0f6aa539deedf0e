from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

from openclaw_core.errors import UsageError
from openclaw_core.loss.selection import RULES, Choice, select
from openclaw_core.loss.support import SUBSETS

NEW = """
from openclaw_core.loss.selection import Rule

RULE = Rule(score=lambda choice: 100 - choice.overlap)
"""


def test_names():
    assert SUBSETS.names() == ("overlap", "student", "teacher")
    assert RULES.names() == ("sequence_optimal", "shortest", "signal_optimal", "token_optimal")


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'token_optimal'"):
        RULES.get("token_optimum")
    with pytest.raises(UsageError, match="choose one of overlap, student, teacher"):
        SUBSETS.get("xyz")


def test_a_file_is_a_rule(tmp_path, monkeypatch):
    (tmp_path / "contrary.py").write_text(NEW)
    package = importlib.import_module("openclaw_core.loss.selections")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "openclaw_core.loss.selections.contrary", raising=False)
    overlap, real = torch.tensor([[2, 1, 0]]), torch.tensor([[True, True, False]])
    chosen = select(RULES.get("contrary"), Choice(overlap, real, None, torch.zeros(1, dtype=torch.int64), 1))
    assert "contrary" in RULES.names()
    assert chosen.k_star.tolist() == [1]


def test_needs_import_no_torch():
    program = (
        "import sys; from openclaw_core.config.schema import Loss; from openclaw_core.loss.needs import needs\n"
        "for rule in ('shortest', 'token_optimal', 'sequence_optimal', 'signal_optimal'):\n"
        "    for subset in ('student', 'teacher', 'overlap'): needs(Loss(selection=rule, subset=subset))\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
