"""Which files of a Hugging Face folder hold its weights: one set of safetensors, whole, or a refusal that says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from openclaw_core.errors import UserError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SAFE_WAY = "Take the release's safetensors, or load it where you trust it and save_pretrained() it as safetensors."
_PICKLE = re.compile(r".*\.(bin|pt|pth|ckpt)(\.index\.json)?$")
_STATE = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state)[^/]*$")
_WHOLE_MODEL = re.compile(r"(pytorch_model.*\.bin|model.*\.(pt|pth|bin)|.*\.ckpt|consolidated.*\.pth)(\.index\.json)?$")
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors$")


def pickled(names: Iterable[str]) -> list[str]:
    """Those of the names that pickled weights have; a trainer's own state isn't meant."""
    return sorted(name for name in names if _PICKLE.match(name) and not _STATE.match(name))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold a folder's weights.

    Raises UserError when there are none, only pickles, two sets of weights, or files missing that the index names.
    """
    names = [path.name for path in folder.iterdir()]
    found = sorted(name for name in names if name.endswith(".safetensors"))
    pickles = pickled(names)
    if not found:
        if pickles:
            raise UserError(f"{folder} holds its weights as pickle ({pickles[0]}), which can run code when read.", SAFE_WAY)
        raise UserError(f"{folder} holds no *.safetensors weights.", "Fetch the model's weights into it.")
    doubles = [name for name in pickles if _WHOLE_MODEL.match(name)]
    if doubles:
        raise UserError(
            f"{folder} holds two sets of weights: {doubles[0]} and {found[0]}.",
            f"Remove {doubles[0]} (or move the folder's safetensors away).",
        )
    return [folder / name for name in (_indexed(folder, found) if (folder / INDEX).is_file() else _alone(folder, found))]


def read_index(path: Path) -> dict[str, str]:
    """Tensor -> file, from an index. Raises UserError where it can't be read or names files elsewhere."""
    try:
        weights = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not all(isinstance(file, str) and "/" not in file for file in weights.values()):
            raise ValueError("weight_map must name files of the same folder")
        if not weights:
            raise ValueError("it names no tensor")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} can't be read: {error}.", "Fetch the model again.") from None
    return weights


def _indexed(folder: Path, found: list[str]) -> list[str]:
    named = sorted(set(read_index(folder / INDEX).values()))
    missing = [name for name in named if name not in found]
    extra = [name for name in found if name not in named]
    if missing:
        raise UserError(
            f"{folder} is incomplete: {INDEX} names {', '.join(missing)}, which isn't there.", "Fetch the model again."
        )
    if extra:
        raise UserError(f"{folder} holds two sets of weights: {INDEX} doesn't name {', '.join(extra)}.", _which(extra, INDEX))
    return named


def _alone(folder: Path, found: list[str]) -> list[str]:
    """The one file of a folder without an index."""
    if all(map(_adapter, found)):
        raise UserError(f"{folder} holds a LoRA adapter alone ({found[0]}).", "Merge it into its base model first.")
    others = [name for name in found if name != SINGLE]
    if SINGLE in found and others:
        raise UserError(f"{folder} holds two sets of weights: {SINGLE} and {', '.join(others[:3])}.", _which(others, SINGLE))
    if len(found) > 1:
        shards = [name for name in found if _SHARD.match(name)] or found
        raise UserError(
            f"{folder} holds {len(shards)} safetensors files ({', '.join(shards[:3])}, ...) but no {INDEX}.",
            "Fetch the index too.",
        )
    return found


def _adapter(name: str) -> bool:
    return name.startswith("adapter_")


def _which(extra: list[str], kept: str) -> str:
    if all(map(_adapter, extra)):
        return "Merge the adapter into the model, or move it away."
    return f"Move {', '.join(extra[:3])} away if {kept} is meant, else {kept}."
