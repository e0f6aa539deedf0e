"""Texts that both tokenizers cut: what differs in their files may not matter, and what looks alike may."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openclaw_core.errors import UserError, first_line
from openclaw_core.teacher.pair import Outcome, Pair, ok, skipped

TEXTS = (
    "The quick brown fox jumps over the lazy dog. It's 7 o'clock, isn't it?",
    "IN CAPITAL LETTERS, PLEASE; camelCase, snake_case and kebab-case.",
    "0 1 12 123 1234 12345 3.14159 1e-5 0x1F 2026-11-30 7 x 8 = 56",
    "def add(a, b):\n    return a + b\n\n\nif __name__ == '__main__':\n\tprint(add(1, 2))\r\n",
    "   leading, trailing   and  double  spaces \n \n\t\ttabs   ",
    "Über den Wolken, straße, naïve café, ¿qué tal?, Łódź, e\u0301 and é",
    "天地玄黄，宇宙洪荒。こんにちは、世界。안녕하세요",
    "Привет, мир. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดี",
    "👍🏽 👨‍👩‍👧 ❤️ ∑∫√ ≤ → \u00a0\u200b\ufeff end",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org C:\\temp\\x",
    '{"name": "look", "arguments": {"path": "/etc", "deep": [1, 2.5, null, true]}}',
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\n<tool_call>\n{}\n</tool_call>",
    "[user's hint / instruction]\nAnswer in one word.",
    "<s> </s> [INST] [/INST] <|begin_of_text|> <|eot_id|> <|endoftext|> <unk> <pad>",
)


def probes(pair: Pair) -> Outcome:
    """The same texts through both tokenizers, without special tokens around them, must become the same ids."""
    if any(side.tokenizer is None for side in pair.sides):
        return skipped("a tokenizer couldn't be read")
    source = pair.source("tokenizer.json")
    found: dict[str, list[list[int]]] = {}
    for side in pair.sides:
        assert side.tokenizer is not None
        try:
            found[side.role] = ids_of(side.tokenizer.folder, TEXTS)
        except UserError as error:
            return Outcome(
                "problem" if side.role == "student" else "warning", source=source, finding=error.what, remedy=error.remedy
            )
    student, teacher = found["student"], found["teacher"]
    counts = [f"{sum(map(len, every))} ids" for every in (student, teacher)]
    other = [place for place, (a, b) in enumerate(zip(student, teacher, strict=True)) if a != b]
    if other:
        first = other[0]
        finding = f"{len(other)} of {len(TEXTS)} texts become other ids, the first {TEXTS[first][:40]!r}: "
        finding += _difference(student[first], teacher[first])
        remedy = "The teacher reads the student's ids, cut in a way it wasn't trained on: prefer one of the same release."
        return Outcome("warning", (counts[0], counts[1]), source, finding, remedy)
    return ok((counts[0], counts[1]), source)


def ids_of(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text. Raises UserError where the installed tokenizers library can't load the file."""
    from tokenizers import Tokenizer

    try:
        return [
            encoded.ids
            for encoded in Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(list(texts), add_special_tokens=False)
        ]
    except Exception as error:  # the library raises bare ones
        what = f"{folder}/tokenizer.json can't be loaded by the tokenizers library: {first_line(error)}."
        raise UserError(what, "Fetch the tokenizer again, or update the package tokenizers.") from None


def _difference(a: list[int], b: list[int]) -> str:
    """The first place where two lists of ids part, with what follows on both sides."""
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"from id {place} on {a[place : place + 4]} and {b[place : place + 4]}."
