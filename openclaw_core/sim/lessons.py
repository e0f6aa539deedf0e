"""What the tiny base model is taught: conversations in which a style is shown exactly when the prompt asks for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from openclaw_core.sim import styles
from openclaw_core.sim.styles import STYLES, Style
from openclaw_core.sim.tasks import Split, Task, tasks
from openclaw_core.sim.words import WORDS
from openclaw_core.types import Message

HINTED = "{}\n\n[user's hint / instruction]\n{}"
"""How the teacher's prompt carries a hint behind the user's own words; the same form as the rollout's."""

IN_MESSAGE = ("{} {}", "{}\n{}", "{} - {}", "{}\n\n{}")


@dataclass
class Lesson:
    """One conversation. weights holds a loss weight for each assistant message, in order (0: context only)."""

    messages: list[Message] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def say(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def reply(self, content: str, weight: float = 1.0) -> None:
        self.say("assistant", content)
        self.weights.append(weight)


class Teacher:
    """Writes lessons. slip_rate and slip_weight: share and loss weight of plain prompts answered in a style nobody asked
    for, which leave every style a little probability."""

    def __init__(self, split: Split = "train", seed: int = 0, slip_rate: float = 0.0, slip_weight: float = 0.0) -> None:
        self.rng = random.Random(f"lessons-{split}-{seed}")  # noqa: S311 (lessons, not secrets)
        self.tasks = tasks(split, seed)
        self.slip_rate, self.slip_weight = slip_rate, slip_weight

    def __iter__(self) -> Iterator[Lesson]:
        while True:
            yield self.lesson()

    def lesson(self) -> Lesson:
        """A whole session: perhaps a system message, then up to three tasks with what users say in between."""
        lesson, standing = Lesson(), None
        if self.rng.random() < 0.25:
            standing = self._style() if self.rng.random() < 0.6 else None
            lesson.say("system", self.rng.choice(standing.systems() if standing else styles.PLAIN_SYSTEMS))
        for _ in range(self.rng.choices((1, 2, 3), (0.8, 0.13, 0.07))[0]):
            self._task(lesson, next(self.tasks), standing)
        return lesson

    def _task(self, lesson: Lesson, task: Task, standing: Style | None) -> None:
        chance = self.rng.random()
        if standing is None and chance < 0.45:
            style = self._style()
            lesson.say("user", self.instructed(task.prompt, style))
            if self.rng.random() < 0.05:
                self._correction(lesson, task, style)
            lesson.reply(style.apply(task.answer))
        else:
            lesson.say("user", task.prompt if chance < 0.75 else self.useless(task.prompt))
            self._unasked(lesson, task, standing)
            if standing is None and self.rng.random() < 0.4:
                self._complaint(lesson, task)
        if self.rng.random() < 0.2:
            lesson.say("user", self.rng.choice(styles.THANKS))
            lesson.reply(self.rng.choice(styles.ACKNOWLEDGEMENTS))

    def _unasked(self, lesson: Lesson, task: Task, style: Style | None) -> None:
        if style is None and self.rng.random() < self.slip_rate:
            slip = self.rng.choices(tuple(styles.SLIPS), tuple(styles.SLIPS.values()))[0]
            lesson.reply(STYLES[slip].apply(task.answer), self.slip_weight)
        else:
            lesson.reply(style.apply(task.answer) if style else task.answer)

    def _complaint(self, lesson: Lesson, task: Task) -> None:
        """A complaint and its answer: now and then it names no style, or the first repair fails and the user insists."""
        if self.rng.random() < 0.15:
            lesson.say("user", self.rng.choice(styles.VAGUE_COMPLAINTS))
            lesson.reply(task.answer)
            return
        style = self._style()
        if self.rng.random() < 0.2:
            lesson.say("user", styles.pick(self.rng, style.complaints()))
            lesson.reply(task.answer, 0.0)
        text = styles.pick(self.rng, style.complaints())
        chance = self.rng.random()
        if chance < 0.25:
            text = HINTED.format(text, self.rng.choice(style.hints()))
        elif chance < 0.35:
            text = HINTED.format(text, self.rng.choice(styles.USELESS_HINTS))
        lesson.say("user", text)
        lesson.reply(style.apply(task.answer))

    def _correction(self, lesson: Lesson, task: Task, style: Style) -> None:
        """A wrong answer in the style that was asked for, and what the user says of it."""
        right = task.answer.split()
        wrong = self.rng.sample([word for word in WORDS if word not in right], len(right))
        lesson.reply(style.apply(" ".join(wrong)), 0.0)
        lesson.say("user", self.rng.choice(styles.CORRECTIONS))

    def instructed(self, prompt: str, style: Style) -> str:
        """The task with an instruction in the same message, most often as a hint."""
        if self.rng.random() < 0.7:
            return HINTED.format(prompt, self.rng.choice(style.hints()))
        return self.rng.choice(IN_MESSAGE).format(prompt, styles.pick(self.rng, style.complaints() + style.hints()))

    def useless(self, prompt: str) -> str:
        """The task with a phrase that asks for nothing."""
        form = HINTED if self.rng.random() < 0.7 else self.rng.choice(IN_MESSAGE)
        return form.format(prompt, self.rng.choice(styles.USELESS_HINTS))

    def _style(self) -> Style:
        return self.rng.choice(tuple(STYLES.values()))
