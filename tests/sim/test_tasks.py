from __future__ import annotations

from itertools import islice

from openclaw_core.sim.tasks import WORDINGS, split_of, tasks
from openclaw_core.sim.words import NUMBERS


def test_same_seed_same_tasks_and_other_seed_other_tasks() -> None:
    assert list(islice(tasks("train", 3), 20)) == list(islice(tasks("train", 3), 20))
    assert list(islice(tasks("train", 3), 20)) != list(islice(tasks("train", 4), 20))


def test_content_of_the_splits_is_disjoint() -> None:
    train = {task.words for task in islice(tasks("train", 0), 3000)}
    held_out = {task.words for task in islice(tasks("held_out", 0), 800)}
    assert not train & held_out
    assert all(split_of(words) == "held_out" for words in held_out)


def test_answers_are_right_whatever_the_kind() -> None:
    seen = set()
    for task in islice(tasks("train", 1), 400):
        words, seen = list(task.words), seen | {task.kind}
        expected = {
            "repeat": words,
            "reverse": words[::-1],
            "sort": sorted(words),
            "longest": [max(words, key=len)],
            "count": [NUMBERS[len(words)]],
            "first": words[:1],
            "last": words[-1:],
        }[task.kind]
        assert task.answer.split() == expected
        assert task.prompt.endswith(" ".join(words))
        if task.kind == "longest":
            assert [len(w) for w in words].count(len(task.answer)) == 1
    assert seen == set(WORDINGS)


def test_ease_shortens_the_longest_tasks_by_that_many_words() -> None:
    def longest(ease: int) -> dict[str, int]:
        found = [(task.kind, len(task.words)) for task in islice(tasks("train", 2, ease), 600)]
        return {kind: max(words for of, words in found if of == kind) for kind in WORDINGS}

    assert longest(1) == {kind: words - 1 for kind, words in longest(0).items()}
