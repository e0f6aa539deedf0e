"""A tokenizer as data: ids to bytes, special ids, template. Read from its JSON files; nothing is run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from openclaw_core.errors import UserError


@dataclass(frozen=True)
class Tokenizer:
    """What two models must agree on. tokens holds each id's bytes; splits what decides how text is cut."""

    folder: Path
    tokens: dict[int, bytes]
    special: dict[int, bytes]
    named: dict[str, str]
    eos_ids: tuple[int, ...]
    template: str | None
    splits: str

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self.tokens, default=-1) + 1

    @cached_property
    def ids(self) -> dict[bytes, int]:
        return {token: number for number, token in self.tokens.items()}


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder. Raises UserError when tokenizer.json is missing or unreadable."""
    value = _json(folder / "tokenizer.json", required=True)
    settings = _json(folder / "tokenizer_config.json")
    try:
        vocab = value["model"]["vocab"]
        pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], index) for index, entry in enumerate(vocab))
        byte_level = "ByteLevel" in json.dumps(value.get("decoder"))
        tokens = {number: _bytes(text, byte_level) for text, number in pairs}
        added = value.get("added_tokens") or []
        tokens |= {entry["id"]: entry["content"].encode() for entry in added}
        special = {entry["id"]: entry["content"].encode() for entry in added if entry.get("special")}
        splits = json.dumps([value["model"].get("merges"), value.get("pre_tokenizer"), value.get("normalizer")], sort_keys=True)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{folder}/tokenizer.json isn't a tokenizer: {error}.", "Fetch the tokenizer again.") from None
    named = {key: _content(settings[key]) for key in ("bos_token", "eos_token", "pad_token", "unk_token") if settings.get(key)}
    return Tokenizer(folder, tokens, special, named, _eos_ids(folder), _template(folder, settings), splits)


def _json(path: Path, required: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise UserError(f"{path.parent} has no {path.name}.", "Fetch the model's tokenizer files into it.")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read as JSON: {error}.", "Fetch the tokenizer again.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} doesn't hold a JSON object.", "Fetch the tokenizer again.")
    return value


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _eos_ids(folder: Path) -> tuple[int, ...]:
    """The ids that end a reply: of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        value = _json(folder / name).get("eos_token_id")
        if value is not None:
            return tuple(sorted(value)) if isinstance(value, list) else (int(value),)
    return ()


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = settings.get("chat_template")
    if isinstance(value, list):
        return next((entry["template"] for entry in value if entry.get("name") == "default"), None)
    return value


def _bytes(token: str, byte_level: bool) -> bytes:
    if not byte_level:
        return token.encode()
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode()


def _byte_letters() -> dict[str, int]:
    """The letters by which byte-level BPE writes bytes: printable ones as they are, others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_letters()
