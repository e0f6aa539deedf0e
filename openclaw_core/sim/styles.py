"""Styles a user may prefer, how people ask for them, and how a reply shows them.

A style turns a plain answer into a styled one and can be read off any reply without knowing the answer. Wordings are
composed of frames and of the style's own phrases ("in capital letters"), so that a few lines give many sentences.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

COMPLAINT_FRAMES = (
    "{}, please", "Please write it {}.", "No, {}.", "Again, {}, please.", "I want it {}.", "Can you write that {}?",
    "I like it {}.", "Not like that: {}.",
)  # fmt: skip
HINT_FRAMES = (
    "Write the whole answer {}.", "Give the answer {}.", "The user wants the answer {}.", "The reply should be {}.",
    "Always write {}.",
)  # fmt: skip
SYSTEM_FRAMES = ("Always answer {}.", "Write every answer {}.", "You are a helpful assistant. Answer {}.")

USELESS_HINTS = (
    "Write the answer with care.", "Give a good answer.", "The user wants a good answer.", "The reply should be right.",
    "Always do the task well.", "Read the task again.", "Think about the user.", "Answer what the user asks.",
    "Do not forget the task.", "The user wants help with a task.",
)  # fmt: skip
"""Hints that ask for nothing: each longer than 10 characters, so that the acceptance rule lets it pass."""

VAGUE_COMPLAINTS = ("Please try again.", "Not like that.", "Again, please.")
CORRECTIONS = ("That is wrong.", "No, that is not right.", "That is not the right answer.")
PLAIN_SYSTEMS = ("You are a helpful assistant.", "Answer what the user asks.", "Do the task well.")
THANKS = ("Thanks!", "Thank you.", "Thank you, that is right.", "Great, thanks.", "Perfect, thank you!")
ACKNOWLEDGEMENTS = ("you are welcome", "with pleasure")


@dataclass(frozen=True)
class Style:
    """A manner of writing an answer.

    phrases name the style inside a frame; apply styles a plain answer; pattern matches a whole reply that shows the
    style; strip takes the style away again.
    """

    name: str
    phrases: tuple[str, ...]
    apply: Callable[[str], str]
    pattern: re.Pattern[str]
    strip: Callable[[str], str]

    def holds(self, reply: str) -> bool:
        """Whether the reply shows this style, right or wrong in content."""
        return self.pattern.fullmatch(reply.strip()) is not None

    def solved(self, reply: str, answer: str) -> bool:
        """Whether the reply is the plain answer once this style is stripped; a right plain reply counts too."""
        return self.strip(reply.strip()) == answer

    def complaints(self) -> tuple[str, ...]:
        """Everything a user of this style may say about a reply that misses it."""
        return tuple(frame.format(phrase) for frame in COMPLAINT_FRAMES for phrase in self.phrases)

    def hints(self) -> tuple[str, ...]:
        """Everything a judge may answer as a hint; each is longer than 10 characters."""
        return tuple(frame.format(phrase) for frame in HINT_FRAMES for phrase in self.phrases)

    def systems(self) -> tuple[str, ...]:
        """System messages that ask for the style."""
        return tuple(frame.format(phrase) for frame in SYSTEM_FRAMES for phrase in self.phrases)

    def mentioned_in(self, text: str) -> bool:
        """Whether the text names this style in any of its phrases."""
        lowered = text.lower()
        return any(phrase in lowered for phrase in self.phrases)


def _between(left: str, right: str) -> tuple[Callable[[str], str], re.Pattern[str], Callable[[str], str]]:
    """apply, pattern and strip of a style that encloses the whole answer."""
    pattern = re.compile(f"{re.escape(left)}[^{re.escape(left + right)}]+{re.escape(right)}")

    def strip(reply: str) -> str:
        return reply[len(left) : len(reply) - len(right)] if pattern.fullmatch(reply) else reply

    return (lambda text: f"{left}{text}{right}"), pattern, strip


def _to_lines(text: str) -> str:
    return "\n".join(f"- {word}" for word in text.split())


def _from_lines(reply: str) -> str:
    return re.sub(r"\n", " ", re.sub(r"(?m)^- ", "", reply))


STYLES: dict[str, Style] = {
    style.name: style
    for style in (
        Style("capitals", ("in capital letters", "in capitals", "all in upper case"),
              str.upper, re.compile(r"[^a-z]*[A-Z][^a-z]*"), str.lower),
        Style("brackets", ("in square brackets", "in brackets", "with brackets around it"), *_between("[", "]")),
        Style("lines", ("with one word per line", "line by line", "as a list with dashes"),
              _to_lines, re.compile(r"- \S+(\n- \S+)*"), _from_lines),
        Style("exclamation", ("with an exclamation mark", "as an exclamation"), *_between("", "!")),
        Style("quotes", ("in quotes", "with quotation marks"), *_between('"', '"')),
        Style("stars", ("in stars", "with stars around it"), *_between("*", "*")),
    )
}  # fmt: skip

PREFERENCES = ("capitals", "brackets", "lines")
"""Styles that simulated users may prefer; the others are taught so that a prompt decides between many."""

SLIPS = {"capitals": 1, "brackets": 5, "lines": 3}
"""How often the base model is taught each preference as a slip, relative to the others: a mark that stands on no answer
otherwise (a bracket) needs more of them than letters do to become as probable."""


def style_named(text: str) -> Style | None:
    """The style that the text names, or None where it names none or more than one."""
    found = [style for style in STYLES.values() if style.mentioned_in(text)]
    return found[0] if len(found) == 1 else None


def shown_style(reply: str) -> str | None:
    """Name of the first style that the reply shows, or None for a plain reply."""
    return next((name for name, style in STYLES.items() if style.holds(reply)), None)


def pick(rng: random.Random, wordings: tuple[str, ...]) -> str:
    """One wording by chance, with its first letter in upper case half of the time."""
    text = rng.choice(wordings)
    return text[0].upper() + text[1:] if rng.random() < 0.5 else text
