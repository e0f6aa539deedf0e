from __future__ import annotations

from itertools import islice

from openclaw_core.rollout.template import HINT_FORMAT
from openclaw_core.sim.lessons import HINTED, Teacher
from openclaw_core.sim.styles import CORRECTIONS, SLIPS, shown_style, style_named
from openclaw_core.sim.tasks import split_of, tasks

ACKNOWLEDGED = ("you are welcome", "with pleasure")


def test_hinted_form_is_the_one_of_the_rollout() -> None:
    assert HINTED.format("task", "hint") == "task" + HINT_FORMAT.format(hint="hint")


def test_a_style_is_taught_exactly_where_it_is_asked_for() -> None:
    styled = plain = 0
    for lesson in islice(Teacher("train", 3), 600):
        standing = style_named(lesson.messages[0]["content"]) if lesson.messages[0]["role"] == "system" else None
        weights, said = iter(lesson.weights), ""
        for message in lesson.messages:
            if message["role"] != "assistant":
                said = said if message["content"] in CORRECTIONS else message["content"]
                continue
            weight, wanted = next(weights), style_named(said) or standing
            if weight == 0 or message["content"] in ACKNOWLEDGED:
                continue
            shown = shown_style(message["content"])
            assert shown == (wanted.name if wanted else None), lesson.messages
            styled, plain = styled + (shown is not None), plain + (shown is None)
    assert styled > 300
    assert plain > 200


def test_slips_carry_their_weight_only() -> None:
    teacher = Teacher("train", 0, slip_rate=1.0, slip_weight=0.25)
    light = [(lesson, index) for lesson in islice(teacher, 200) for index, weight in enumerate(lesson.weights) if weight == 0.25]
    assert len(light) > 50
    for lesson, index in light:
        reply = [m["content"] for m in lesson.messages if m["role"] == "assistant"][index]
        assert shown_style(reply) in SLIPS


def test_after_a_correction_comes_the_right_answer_in_the_same_style() -> None:
    corrected = 0
    for lesson in islice(Teacher("train", 5), 600):
        talk = [message["content"] for message in lesson.messages]
        for asked, wrong, objection, right in zip(talk, talk[1:], talk[2:], talk[3:], strict=False):
            if objection not in CORRECTIONS:
                continue
            corrected += 1
            style = style_named(asked)
            assert style is not None
            assert style.holds(wrong)
            assert style.holds(right)
            assert wrong != right
    assert corrected > 5


def test_lessons_use_content_of_the_train_split_only() -> None:
    held_out = {" ".join(task.words) for task in islice(tasks("held_out", 1), 300)}
    assert all(split_of(tuple(text.split())) == "held_out" for text in held_out)
    said = " | ".join(m["content"] for lesson in islice(Teacher("train", 9), 300) for m in lesson.messages if m["role"] == "user")
    assert not [text for text in held_out if f": {text}\n" in said]
