"""Tokenizers for tiny folders, and what a report on a pair says."""

from __future__ import annotations

import json
from pathlib import Path

PROBES = "Probe texts become the same ids"
MERGES = [["t", "h"], ["th", "e"], ["o", "w"], ["l", "ow"], ["i", "n"]]
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
ARGUMENTS = {
    "num_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 16,
    "ffn_hidden_size": 48, "padded_vocab_size": 256, "vocab_size": 200, "rotary_base": 1000000, "norm_epsilon": 1e-6,
    "max_position_embeddings": 256, "swiglu": True, "normalization": "RMSNorm", "qk_layernorm": True,
    "untie_embeddings_and_output_weights": False,
}  # fmt: skip


def tokenizer(path: Path) -> None:
    """In place of the folder's bare vocabulary one that the library loads: characters, merges of them, and more to fill it."""
    value = json.loads(path.read_text())
    words = [chr(code) for code in range(33, 127)] + ["".join(pair) for pair in MERGES]
    words += [f"t{number}" for number in range(100, 290 - len(words))]
    value["model"] = {"type": "BPE", "vocab": {word: number for number, word in enumerate(words)}, "merges": MERGES}
    value["added_tokens"] = [{**FLAGS, **token} for token in value["added_tokens"]]
    path.write_text(json.dumps({"version": "1.0", **value}))


def edit(path: Path, change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def states(report) -> dict[str, str]:
    return {check.title: check.state for check in report.checks}


def of(report, title: str):
    return next(check for check in report.checks if check.title == title)


def only(report, title: str, state: str, *beside: str):
    """The one check that isn't ok; those of the titles beside warn with it."""
    found = {name: found for name, found in states(report).items() if found not in ("ok", "skipped")}
    assert found == {title: state, **dict.fromkeys(beside, "warning")}
    return of(report, title)
