"""Text of token ids, one at a time, without importing a model library."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError


@dataclass(frozen=True, slots=True)
class TokenText:
    """text is what the id stands for; flagged where the tokenizer has no such id."""

    id: int
    text: str
    flagged: bool = False


class TokenTexts:
    """Looks up ids in a tokenizer.json; without one, every id is shown as `<id N>` and none is flagged.

    last_id is the tokenizer's last real id. Raises UserError where the file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.last_id: int | None = None
        self.hash = ""
        self._tokenizer: Any = None
        self._known: dict[int, TokenText] = {}
        if path is None:
            return
        from tokenizers import Tokenizer

        try:
            self.hash = tokenizer_hash(path)
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare exceptions
            raise UserError(
                f"The tokenizer {path} cannot be read ({getattr(error, 'strerror', None) or error}).",
                "Give another with --tokenizer.",
            ) from None
        self.last_id = max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def one(self, token_id: int) -> TokenText:
        """The text of one id; a piece of a character is shown as the vocabulary has it."""
        token_id = int(token_id)
        if token_id not in self._known:
            self._known[token_id] = self._look_up(token_id)
        return self._known[token_id]

    def _look_up(self, token_id: int) -> TokenText:
        if self._tokenizer is None:
            return TokenText(token_id, f"<id {token_id}>")
        piece = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
        if piece is None:
            return TokenText(token_id, f"<id {token_id}>", flagged=True)
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return TokenText(token_id, piece if not text or "\ufffd" in text else text)

    def many(self, ids: Any) -> str:
        """The text of a sequence of ids; ids that the tokenizer doesn't have stand as `<id N>`."""
        values = [int(value) for value in ids]
        if self._tokenizer is None:
            return f"<{len(values)} ids>"
        parts: list[str] = []
        run: list[int] = []
        for value in [*values, None]:
            if value is not None and value >= 0 and self._tokenizer.id_to_token(value) is not None:
                run.append(value)
                continue
            parts.append(self._tokenizer.decode(run, skip_special_tokens=False))
            run = []
            if value is not None:
                parts.append(f"<id {value}>")
        return "".join(parts)


def tokenizer_hash(path: Path) -> str:
    """What names a tokenizer in dump headers: the SHA-256 of its tokenizer.json, as hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
