"""The lowercase vocabulary of the tasks: short words, so that a tiny tokenizer holds each whole, in lower and upper case."""

from __future__ import annotations

_LIST = """
ant apple arm bear bell book bread cake castle chain clock cloud dance dog dream duck eagle egg fig flag
flower forest garden goat hammer hill key lake leaf market milk moon pan pen plum queen rain rope salt
seed silver snow sun table tiger tree well whale
"""

WORDS: tuple[str, ...] = tuple(_LIST.split())

NUMBERS: dict[int, str] = {2: "two", 3: "three", 4: "four", 5: "five"}
