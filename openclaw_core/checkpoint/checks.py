"""Checks of a config against the weights and the tokenizer beside it: what a conversion must not get wrong silently."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch

from openclaw_core.checkpoint.hf import HfReader
from openclaw_core.checkpoint.kinds import PIECE_BYTES
from openclaw_core.checkpoint.verify import same_bits
from openclaw_core.errors import Findings, UsageFindings, UserError
from openclaw_core.models.architecture import Architecture, LatentAttention

HEAD = "lm_head.weight"


def check_expected(arch: Architecture, expect: dict[str, str]) -> None:
    """Fields that the caller states must be what the config says: flags confirm, they never override.

    Raises UsageFindings where a field is unknown, else Findings, with everything that is wrong.
    """
    fields = {item.name: getattr(arch, item.name) for item in dataclasses.fields(arch)}
    unknown = [
        (f"Unknown architecture field {key}.", f"Fields: {', '.join(fields)}.") for key in sorted(set(expect) - set(fields))
    ]
    wrong = [
        (f"{key}: expected {value}, config.json says {fields[key]}.", "Use the matching model, or drop the expectation.")
        for key, value in expect.items()
        if key in fields and not _equal(fields[key], value)
    ]
    if unknown:
        raise UsageFindings("The config can't be what was expected.", unknown + wrong)
    if wrong:
        raise Findings("The config isn't what was expected.", wrong)


def _equal(actual: object, stated: str) -> bool:
    plain = dataclasses.asdict(actual) if isinstance(actual, LatentAttention) else actual
    try:
        return bool(json.loads(stated) == json.loads(json.dumps(plain)))
    except ValueError:
        return str(actual) == stated


def check_head(reader: HfReader, arch: Architecture) -> dict[str, str]:
    """Compares the tied flag with the tensors; returns a tied head that lies there as a copy, to be left out.

    Raises UserError when the head is missing, or present and different although the config ties it.
    """
    embedding = f"{arch.prefix}embed_tokens.weight"
    if arch.tied and HEAD in reader.entries:
        if not _same_tensor(reader, embedding, HEAD):
            raise UserError(
                f"{reader.folder}: tie_word_embeddings=true, but {HEAD} differs from {embedding}.",
                "Set tie_word_embeddings to false if the head was trained, else remove the head.",
            )
        return {HEAD: f"a copy of {embedding}, which the config ties it to"}
    if not arch.tied and HEAD not in reader.entries:
        raise UserError(
            f"{reader.folder}: tie_word_embeddings=false, but there is no {HEAD}.",
            "Set it to true if the model ties its head, else fetch the weights again.",
        )
    return {}


def check_rope_buffers(reader: HfReader, arch: Architecture) -> dict[str, str]:
    """Rope frequencies that old checkpoints store must be those of the config's base; returns them, to be left out."""
    left_out = {}
    for name in reader.entries:
        if not name.endswith("rotary_emb.inv_freq"):
            continue
        stored = reader.read(name).double()
        expected = arch.rope_theta ** -(torch.arange(0, arch.head_dim, 2, dtype=torch.float64) / arch.head_dim)
        if (
            arch.rope_scaling is None
            and arch.mla is None
            and (stored.shape != expected.shape or not torch.allclose(stored, expected, rtol=1e-2))
        ):
            raise UserError(
                f"{reader.folder}: {name} isn't made from the config's rope base {arch.rope_theta:g}.",
                "Correct rope_theta in config.json.",
            )
        left_out[name] = "computed from the rope base"
    return left_out


def _same_tensor(reader: HfReader, first: str, second: str) -> bool:
    a, b = reader.entries.get(first), reader.entries[second]
    if a is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    step = max(1, PIECE_BYTES // max(1, (a.stop - a.start) // a.shape[0]))
    rows = range(0, a.shape[0], step)
    return all(
        same_bits(*(reader.read(name, (start, min(start + step, a.shape[0]))) for name in (first, second))) for start in rows
    )


def check_tokenizer(folder: Path, arch: Architecture) -> None:
    """The tokenizer beside a config must not have ids past the embedding's rows. Folders without one pass."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return
    try:
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        ids = [item["id"] for item in tokenizer.get("added_tokens", [])]
        vocab = tokenizer["model"]["vocab"]
        ids += list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]
        if not all(isinstance(number, int) for number in ids):
            raise ValueError("it has ids that are no numbers")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} can't be read: {error}.", "Fetch the tokenizer again.") from None
    if ids and max(ids) >= arch.vocab:
        raise UserError(
            f"{folder}: the tokenizer has id {max(ids)}, the embedding {arch.vocab} rows (vocab_size).",
            "Take tokenizer and config from the same release.",
        )
