"""What proves that the teacher of a run stayed as it was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from openclaw_core.errors import UserError
from openclaw_core.run.frozen import Frozen
from openclaw_core.run.runs import create_run


def fleet(*hashes: str) -> SimpleNamespace:
    """One whose teacher has these hashes, one after the other; no teacher without any."""
    left = iter(hashes)
    return SimpleNamespace(has_teacher=bool(hashes), teacher_hash=lambda: next(left))


def test_a_teacher_that_stayed_is_proven_by_its_hash(tmp_path):
    run = create_run(tmp_path, "demo")
    Frozen(run, fleet("abc", "abc")).prove()
    assert (run.read().facts["teacher_hash"], run.read().facts["teacher_hash_end"]) == ("abc", "abc")


def test_a_teacher_that_changed_ends_the_run_with_both_hashes(tmp_path):
    run = create_run(tmp_path, "demo")
    frozen = Frozen(run, fleet("abc", "abd"))
    with pytest.raises(UserError, match="weights changed during the run: hash abc before, abd after"):
        frozen.prove()
    assert run.read().facts["teacher_hash_end"] == "abd"


def test_without_a_teacher_there_is_nothing_to_prove(tmp_path):
    run = create_run(tmp_path, "demo")
    Frozen(run, fleet()).prove()
    assert "teacher_hash" not in run.read().facts
