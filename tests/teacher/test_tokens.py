"""A tokenizer as it is read."""

from __future__ import annotations

import runpy
from pathlib import Path

from openclaw_core.teacher.tokens import read_tokenizer

pairs = runpy.run_path(str(Path(__file__).with_name("pairs.py")))
edit = pairs["edit"]


def test_byte_level_tokens_are_bytes(make):
    student = make("s")

    def change(value):
        value["decoder"] = {"type": "ByteLevel"}
        value["model"]["vocab"] = {"Ġhi": 0, "é": 1, "ł": 2}

    edit(student / "tokenizer.json", change)
    tokens = read_tokenizer(student).tokens
    assert [tokens[number] for number in range(3)] == [b" hi", b"\xe9", b"\xa0"]
