"""Errors cross process borders whole: in a run they are raised in an actor and told by the driver."""

from __future__ import annotations

import pickle

import pytest

from openclaw_core.errors import Findings, UsageError, UsageFindings, UserError, first_line
from openclaw_core.rollout.engines.errors import EngineBusy, PromptTooLong
from openclaw_core.run.services import ServiceError

ERRORS = [
    UserError("It broke.", "Mend it."),
    UsageError("Wrong flag.", "Take it away."),
    Findings("Two things:", [("One.", "Do."), ("Two.", "")]),
    UsageFindings("Two flags:", [("One.", "Do.")]),
    ServiceError("It ended.", "See its log.", log_tail="last words"),
    EngineBusy("Busy.", status=503, text="later", retry_after=2.0),
    PromptTooLong("Too long.", prompt_tokens=9, limit=8),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_pickled_and_back(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again), again.exit_code) == (type(error), str(error), vars(error), error.exit_code)


@pytest.mark.parametrize(
    ("error", "said"), [(ValueError("No.\nMore."), "No."), (ValueError(), "ValueError"), (OSError("\nLate."), "Late.")]
)
def test_the_first_line_of_what_a_library_says(error, said):
    assert first_line(error) == said
