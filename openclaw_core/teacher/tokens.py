"""A tokenizer as data: ids to bytes, special ids, template. Read from its JSON files; nothing is run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from openclaw_core.errors import UserError

AGAIN = "Fetch the tokenizer again."
RULES = {"normalizers": "normalizer", "pre-tokenizers": "pre_tokenizer"}
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


@dataclass(frozen=True)
class Tokenizer:
    """What two models must agree on. tokens holds each id's bytes; merges and rules decide how text is cut.

    rules is by what it is of: normalizers, pre-tokenizers, the models' other settings; flags are those of each added token.
    """

    folder: Path
    tokens: dict[int, bytes]
    special: dict[int, bytes]
    named: dict[str, str]
    eos_ids: tuple[int, ...]
    template: str | None
    merges: tuple[str, ...] = field(repr=False)
    rules: dict[str, str] = field(repr=False)
    flags: dict[str, tuple[bool, ...]] = field(repr=False)

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self.tokens, default=-1) + 1

    @cached_property
    def ids(self) -> dict[bytes, int]:
        return {token: number for number, token in self.tokens.items()}


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder.

    Raises UserError where tokenizer.json is missing, or a file of the tokenizer can't be read as what it should be.
    """
    value = _json(folder / "tokenizer.json", required=True)
    settings = _json(folder / "tokenizer_config.json")
    try:
        model = value["model"]
        vocab = model["vocab"]
        pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], index) for index, entry in enumerate(vocab))
        byte_level = "ByteLevel" in json.dumps(value.get("decoder"))
        tokens = {_id(number): _bytes(text, byte_level) for text, number in pairs}
        added = {_id(entry["id"]): entry for entry in value.get("added_tokens") or []}
        tokens |= {number: entry["content"].encode() for number, entry in added.items()}
        special = {number: tokens[number] for number, entry in added.items() if entry.get("special")}
        merges = tuple(pair if isinstance(pair, str) else " ".join(pair) for pair in model.get("merges") or ())
        rules = {name: json.dumps(value.get(key), sort_keys=True) for name, key in RULES.items()}
        flags = {entry["content"]: tuple(bool(entry.get(flag)) for flag in FLAGS) for entry in added.values()}
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise UserError(f"{folder}/tokenizer.json isn't a tokenizer: {error}.", AGAIN) from None
    rules["models' settings"] = _settings(model, vocab)
    named = _named(folder, settings)
    return Tokenizer(folder, tokens, special, named, _eos_ids(folder), _template(folder, settings), merges, rules, flags)


def _json(path: Path, required: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise UserError(f"{path.parent} has no {path.name}.", "Fetch the model's tokenizer files into it.")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read as JSON: {error}.", AGAIN) from None
    if not isinstance(value, dict):
        raise UserError(f"{path} doesn't hold a JSON object.", AGAIN)
    return value


def _id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no id")
    return value


def _settings(model: dict[str, Any], vocab: Any) -> str:
    """What else of the model decides the cuts: settings that are off are as good as absent; scores where it has some."""
    kept = {
        name: setting for name, setting in model.items() if name not in ("vocab", "merges") and setting not in (None, False, "")
    }
    return json.dumps([kept, None if isinstance(vocab, dict) else vocab], sort_keys=True)


def _named(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    named = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = settings.get(key)
        text = token.get("content") if isinstance(token, dict) else token
        if text is not None and not isinstance(text, str):
            raise UserError(f"{folder}/tokenizer_config.json: {key} is {text!r}, not a text.", AGAIN)
        if text:
            named[key] = text
    return named


def _eos_ids(folder: Path) -> tuple[int, ...]:
    """The ids that end a reply: of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        value = _json(folder / name).get("eos_token_id")
        if value is None:
            continue
        ids: Iterable[Any] = value if isinstance(value, list) else (value,)
        try:
            return tuple(sorted(map(_id, ids)))
        except ValueError:
            raise UserError(f"{folder / name}: eos_token_id is {value!r}, not an id or a list of ids.", AGAIN) from None
    return ()


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"{path} can't be read: {error}.", AGAIN) from None
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = [entry for entry in value if isinstance(entry, dict) and entry.get("name") == "default"]
        value = named[0].get("template") if named else None
    if value is not None and not isinstance(value, str):
        raise UserError(f"{folder}/tokenizer_config.json: chat_template is {value!r:.40}, not a text.", AGAIN)
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
