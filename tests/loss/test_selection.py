from __future__ import annotations

import pytest
import torch

from openclaw_core.loss.selection import RULES, Choice, select


def choice(overlap, real=None, steps=None, signal=None):
    overlap = torch.tensor(overlap)
    real = torch.ones_like(overlap, dtype=torch.bool) if real is None else torch.tensor(real)
    step_of_row = torch.zeros(len(overlap), dtype=torch.int64) if steps is None else torch.tensor(steps)
    signal = None if signal is None else torch.tensor(signal)
    return Choice(overlap, real, signal, step_of_row, int(step_of_row.max()) + 1)


@pytest.mark.parametrize(
    ("rule", "steps", "expected"),
    [
        ("shortest", None, [0, 0, 0, 0]),
        ("token_optimal", None, [1, 0, 2, 0]),
        ("sequence_optimal", None, [2, 2, 2, 2]),
        ("sequence_optimal", [0, 0, 1, 1], [0, 0, 2, 2]),
        ("sequence_optimal", [0, -1, -1, 1], [1, 0, 0, 0]),
        ("sequence_optimal", [-1, -1, -1, -1], [0, 0, 0, 0]),
    ],
)
def test_rules(rule, steps, expected):
    overlap = [[1, 2, 0], [3, 2, 3], [0, 0, 3], [1, 1, 1]]
    assert select(RULES.get(rule), choice(overlap, steps=steps)).k_star.tolist() == expected


@pytest.mark.parametrize("rule", ["shortest", "token_optimal", "sequence_optimal", "signal_optimal"])
def test_only_real_candidates_win(rule):
    seen = choice([[0, 4, 9], [0, 0, 9]], real=[[True, True, False], [False, False, False]], steps=[0, 1], signal=[[1.0] * 3] * 2)
    assert select(RULES.get(rule), seen).k_star.tolist() == [0 if rule == "shortest" else 1, 0]


def test_ties_are_told():
    told = select(RULES.get("token_optimal"), choice([[2, 2, 9], [1, 2, 2]], real=[[True, True, False], [True, True, False]]))
    assert told.k_star.tolist() == [0, 1]
    assert told.tied.tolist() == [True, False]
    assert select(RULES.get("shortest"), choice([[1, 1]])).tied is None


def test_signal_optimal_sets_aside_what_the_teacher_ignores():
    overlap = [[4, 2, 1], [4, 2, 3]]
    ignored_first = choice(overlap, signal=[[0.1, 0.8, 0.5], [0.0, 0.2, 0.4]])
    assert select(RULES.get("signal_optimal"), ignored_first).k_star.tolist() == [1, 1]
    exactly_half = choice(overlap, signal=[[0.5, 1.0, 0.1], [0.0, 0.0, 0.1]])
    assert select(RULES.get("signal_optimal"), exactly_half).k_star.tolist() == [0, 0]
    just_below = choice(overlap, signal=[[0.49, 1.0, 0.1], [0.0, 0.0, 0.1]])
    assert select(RULES.get("signal_optimal"), just_below).k_star.tolist() == [1, 1]
    filler_is_loud = choice(overlap, real=[[True, True, False]] * 2, signal=[[0.5, 0.5, 99.0], [0.0, 0.0, 99.0]])
    assert select(RULES.get("signal_optimal"), filler_is_loud).k_star.tolist() == [0, 0]
