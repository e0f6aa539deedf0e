"""The lowercase vocabulary of the tasks: short words, so that a tiny tokenizer holds each whole, in lower and upper case."""

from __future__ import annotations

WORDS: tuple[str, ...] = tuple(
    (
        "ant apple arm barn bear bell book bread bridge broom cake carpet castle chain clock cloud coat dance dog dream "
        "duck eagle egg feather fig flag flower fog forest garden gate goat hammer hill ice key lake leaf market milk "
        "moon net orange oven pan paper pen pig pillow plum queen rain rope salt sand seed silver snow sun table tiger "
        "tree well whale "
    ).split()
)

NUMBERS: dict[int, str] = {2: "two", 3: "three", 4: "four", 5: "five"}
