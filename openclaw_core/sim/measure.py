"""How well a model obeys: plain when nothing is asked, styled when it is, and the task solved either way."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from openclaw_core.sim import styles
from openclaw_core.sim.lessons import HINTED, IN_MESSAGE
from openclaw_core.sim.styles import STYLES, Style, pick, shown_style
from openclaw_core.sim.tasks import Task
from openclaw_core.types import Message

Generate = Callable[[list[Message]], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Case:
    """One held-out prompt. style is the style that it asks for, None where it asks for none."""

    group: str
    messages: tuple[Message, ...]
    task: Task
    style: Style | None


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def asked(tasks: Iterable[Task], style: Style, seed: int = 0) -> list[Case]:
    """Each task with the style asked for: as a hint, in the message, in a system message, and as a complaint with and
    without a hint, by turns."""
    rng = random.Random(f"asked-{style.name}-{seed}")  # noqa: S311 (tasks, not secrets)
    cases = []
    for index, task in enumerate(tasks):
        complaint, hint = pick(rng, style.complaints()), rng.choice(style.hints())
        context = (user(task.prompt), assistant(task.answer))
        forms: tuple[tuple[str, tuple[Message, ...]], ...] = (
            ("hint", (user(HINTED.format(task.prompt, hint)),)),
            ("message", (user(rng.choice(IN_MESSAGE).format(task.prompt, complaint)),)),
            ("system", ({"role": "system", "content": rng.choice(style.systems())}, user(task.prompt))),
            ("complaint", (*context, user(complaint))),
            ("hinted complaint", (*context, user(HINTED.format(complaint, hint)))),
        )
        cases.append(Case(*forms[index % len(forms)], task, style))
    return cases


def unasked(tasks: Iterable[Task], seed: int = 0) -> list[Case]:
    """Each task with nothing asked: bare, with a useless hint, and after a task whose style was complained about, by turns."""
    rng = random.Random(f"unasked-{seed}")  # noqa: S311 (tasks, not secrets)
    cases, before = [], None
    for index, task in enumerate(tasks):
        previous = before or task
        style = rng.choice(tuple(STYLES.values()))
        session = (
            user(previous.prompt), assistant(previous.answer), user(pick(rng, style.complaints())),
            assistant(style.apply(previous.answer)), user(rng.choice(styles.THANKS)), assistant(styles.ACKNOWLEDGEMENTS[0]),
        )  # fmt: skip
        forms: tuple[tuple[str, tuple[Message, ...]], ...] = (
            ("bare", (user(task.prompt),)),
            ("useless hint", (user(HINTED.format(task.prompt, rng.choice(styles.USELESS_HINTS))),)),
            ("after a complaint", (*session, user(task.prompt))),
        )
        cases.append(Case(*forms[index % len(forms)], task, None))
        before = task
    return cases


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of replies. obeyed: showed exactly what was asked; solved: right once the asked style is stripped."""

    count: int
    obeyed: float
    solved: float


def rate(cases: list[Case], replies: list[str]) -> Rates:
    """Rates over replies to cases, both in the same order."""
    obeyed = solved = 0
    for case, reply in zip(cases, replies, strict=True):
        obeyed += case.style.holds(reply) if case.style else shown_style(reply) is None
        solved += case.style.solved(reply, case.task.answer) if case.style else reply.strip() == case.task.answer
    return Rates(len(cases), obeyed / len(cases), solved / len(cases))


async def evaluate(generate: Generate, tasks: list[Task], style: Style) -> Rates:
    """Preference reading: bare tasks, no hint. obeyed is the rate of the style, solved that of right answers in the style.

    generate answers one conversation; all tasks are asked at once, so it bounds its own concurrency.
    """
    import asyncio

    replies = await asyncio.gather(*(generate([user(task.prompt)]) for task in tasks))
    held = [style.holds(reply) for reply in replies]
    right = [style.solved(reply, task.answer) for reply, task in zip(replies, tasks, strict=True)]
    shown = sum(held)
    both = sum(h and r for h, r in zip(held, right, strict=True))
    return Rates(len(tasks), shown / len(tasks), both / shown if shown else sum(right) / len(tasks))
