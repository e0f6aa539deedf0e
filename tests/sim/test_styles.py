from __future__ import annotations

from itertools import islice

import pytest

from openclaw_core.sim import styles
from openclaw_core.sim.styles import PREFERENCES, STYLES, shown_style, style_named
from openclaw_core.sim.tasks import tasks
from openclaw_core.sim.words import WORDS

ANSWERS = sorted({task.answer for task in islice(tasks("held_out", 5), 200)})


@pytest.mark.parametrize("style", STYLES.values(), ids=lambda s: s.name)
def test_style_shows_on_every_answer_and_nowhere_else(style: styles.Style) -> None:
    for answer in ANSWERS:
        styled = style.apply(answer)
        assert style.holds(styled)
        assert not style.holds(answer)
        assert style.solved(styled, answer)
        assert style.solved(answer, answer)
        assert shown_style(styled) == style.name
        assert shown_style(answer) is None
        assert not style.solved(style.apply(answer + " owl"), answer)


@pytest.mark.parametrize(
    ("name", "reply"),
    [("capitals", "Apple PEAR"), ("capitals", "APPLE pear"), ("brackets", "[apple"), ("brackets", "[apple] [pear]"),
     ("lines", "- apple pear"), ("lines", "apple\npear"), ("lines", "- apple\npear"), ("brackets", "[]"),
     ("capitals", ""), ("lines", "")],
)  # fmt: skip
def test_half_a_style_does_not_hold(name: str, reply: str) -> None:
    assert not STYLES[name].holds(reply)


@pytest.mark.parametrize("style", STYLES.values(), ids=lambda s: s.name)
def test_every_wording_names_its_style_alone(style: styles.Style) -> None:
    wordings = style.complaints() + style.hints() + style.systems()
    assert len(set(style.hints())) >= 10
    for wording in wordings:
        assert style_named(wording) is style, wording


def test_what_asks_for_nothing_names_no_style_and_every_hint_is_long_enough() -> None:
    for text in (*styles.USELESS_HINTS, *styles.VAGUE_COMPLAINTS, *styles.CORRECTIONS, *styles.PLAIN_SYSTEMS, *styles.THANKS):
        assert style_named(text) is None, text
    for hint in styles.USELESS_HINTS + tuple(h for s in STYLES.values() for h in s.hints()):
        assert len(hint.strip()) > 10


def test_no_word_of_the_tasks_sounds_like_a_style() -> None:
    assert style_named(" ".join(WORDS)) is None
    assert set(PREFERENCES) <= set(STYLES)
    assert set(PREFERENCES) == set(styles.SLIPS)
