"""Small text tasks with one right answer each, over a fixed word list.

The plain answer is lowercase words with single spaces between them, never digits or punctuation, so that every style of
styles.py shows on every answer, one word or many.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from openclaw_core.sim.words import NUMBERS, WORDS

Split = Literal["train", "held_out"]

WORDINGS: dict[str, tuple[str, ...]] = {
    "repeat": ("Repeat these words: {}", "Say again: {}", "Copy the words: {}"),
    "reverse": ("Reverse these words: {}", "Say backwards: {}", "Turn the order around: {}"),
    "sort": ("Sort these words: {}", "Put in alphabetical order: {}", "Order from a to z: {}"),
    "longest": ("Find the longest word: {}", "Which word is longest: {}", "Pick the longest: {}"),
    "count": ("Count these words: {}", "How many words: {}", "Give the number of words: {}"),
    "first": ("Find the first word: {}", "Which word is first: {}", "Pick the first: {}"),
    "last": ("Find the last word: {}", "Which word is last: {}", "Pick the last: {}"),
}


def _longest(words: list[str]) -> str | None:
    """The longest word, or None where two share the first place."""
    top = max(len(word) for word in words)
    found = [word for word in words if len(word) == top]
    return found[0] if len(found) == 1 else None


_ANSWERS: dict[str, Callable[[list[str]], str | None]] = {
    "repeat": " ".join,
    "reverse": lambda words: " ".join(reversed(words)),
    "sort": lambda words: " ".join(sorted(words)),
    "longest": _longest,
    "count": lambda words: NUMBERS[len(words)],
    "first": lambda words: words[0],
    "last": lambda words: words[-1],
}


_MOST_WORDS = {"sort": 3, "count": max(NUMBERS)}

EASE = 1
"""How much easier than the lessons the tasks are that people set."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task. answer is the plain expected reply; words is its content, which belongs to one split only."""

    kind: str
    prompt: str
    answer: str
    words: tuple[str, ...]


def split_of(words: tuple[str, ...]) -> Split:
    """The split that owns this content, whatever the task's kind and wording: one in ten is held out."""
    return "held_out" if zlib.crc32(" ".join(words).encode()) % 10 == 0 else "train"


def tasks(split: Split = "train", seed: int = 0, ease: int = 0) -> Iterator[Task]:
    """Endless tasks of one split, the same for the same seed. Content of the two splits is disjoint.

    ease is the number of words by which the longest are shorter. People set tasks a little easier than those that the base
    model was taught, so that a wrong answer tells of the training and not of the model's limits.
    """
    rng = random.Random(f"{split}-{seed}")  # noqa: S311 (tasks, not secrets)
    kinds = tuple(WORDINGS)
    while True:
        kind = rng.choice(kinds)
        words = rng.sample(WORDS, rng.randint(2, _MOST_WORDS.get(kind, 4) - ease))
        answer = _ANSWERS[kind](words)
        if answer is None or split_of(tuple(words)) != split:
            continue
        yield Task(kind, rng.choice(WORDINGS[kind]).format(" ".join(words)), answer, tuple(words))
