"""The manifest beside a checkpoint of ours (what it holds, hashed; written last), and the files carried with the weights."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_core.checkpoint.names import HF_FOLDER, MANIFEST, TEMPLATES_FOLDER
from openclaw_core.checkpoint.sniff import own_places
from openclaw_core.errors import UserError

FORMAT = 1
_FACTS = {"shape", "dtype", "sha256"}
_COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "*.jinja",
    "*.model",
    "*processor_config.json",
    "LICENSE*",
    "NOTICE*",
    "USE_POLICY*",
    "*.py",
    f"{TEMPLATES_FOLDER}/*",
)


@dataclass(frozen=True)
class Manifest:
    """What a finished checkpoint holds. tensors: Hugging Face name -> shape, dtype, sha256; companions: file -> sha256.

    carried: as tensors, of those that are copied as they are. files: as companions, of what a torch_dist needs beside its
    tensors (index, common and extra states), in the folder with .metadata. left_out: source tensors that weren't converted, each
    with the reason.
    """

    kind: str
    source: str
    architecture: dict[str, Any]
    vocabulary: dict[str, int]
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    companions: dict[str, str] = field(default_factory=dict)
    carried: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def sums(self) -> dict[str, str]:
        """Name -> sha256, of the tensors that were hashed."""
        return {name: str(facts["sha256"]) for name, facts in self.tensors.items() if facts.get("sha256")}

    @property
    def carried_sums(self) -> dict[str, str]:
        """As sums, of the carried tensors."""
        return {name: str(facts["sha256"]) for name, facts in self.carried.items() if facts.get("sha256")}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest, synced: the last file of a conversion."""
    value = {"format": FORMAT, "complete": True, **manifest.__dict__}
    write_synced(folder / MANIFEST, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a checkpoint, given its root or its folder with .metadata; None when there is none.

    Raises UserError when it can't be read or doesn't say that it is complete.
    """
    for place in own_places(folder):
        path = place / MANIFEST
        if not path.is_file():
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if value.pop("format") != FORMAT or value.pop("complete") is not True:
                raise ValueError("it isn't marked complete in a format that this version reads")
            return _checked(Manifest(**value))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} can't be used: {error}.", "Convert again to another place.") from None
    return None


def conversion_in(folder: Path) -> dict[str, str] | None:
    """kind and source of the conversion whose output folder is, whichever version made it; None where its manifest isn't there,
    can't be read, or lists no tensors, as that of a run's checkpoint."""
    try:
        value = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("complete") is not True or not value.get("tensors"):
        return None
    return {key: str(value.get(key, "unknown")) for key in ("kind", "source")}


def _checked(manifest: Manifest) -> Manifest:
    """The manifest; ValueError where a field isn't of its kind, or a file's name leads out of the checkpoint."""
    kinds = {"kind": str, "source": str} | dict.fromkeys(("architecture", "vocabulary", "companions", "files", "left_out"), dict)
    for name, kind in kinds.items():
        if not isinstance(getattr(manifest, name), kind):
            raise ValueError(f"its {name} is no {'text' if kind is str else 'object'}")
    for name in ("tensors", "carried"):
        listed = getattr(manifest, name)
        if not isinstance(listed, dict) or not all(isinstance(one, dict) and one.keys() >= _FACTS for one in listed.values()):
            raise ValueError(f"its {name} aren't each described by {', '.join(sorted(_FACTS))}")
    astray = [name for name in (*manifest.companions, *manifest.files) if Path(name).is_absolute() or ".." in Path(name).parts]
    if astray:
        raise ValueError(f"it names {', '.join(astray)}, which is no part of it")
    return manifest


def companions(folder: Path) -> list[Path]:
    """Files of a Hugging Face folder that belong to the weights: config, tokenizer, templates, generation config."""
    return sorted(path for path in _named(folder) if path.is_file() and path.suffix not in (".safetensors", ".bin"))


def check_companions(folder: Path) -> None:
    """Raises UserError for a name of a file that is a folder, or a link to nothing: a copy would lose it in silence; and for a
    template that is a link to somewhere else: a copy would hold what never was a part of the model."""
    templates = [*folder.glob(f"{TEMPLATES_FOLDER}/*")]
    broken = sorted(str(path) for path in _named(folder) if (path.suffix or path in templates) and not path.is_file())
    if broken:
        raise UserError(f"{', '.join(broken)}: not a file, or a link to one that is gone.", "Fetch the model again.")
    for path in companions(folder):
        if path.suffix == ".json" and path.name != "tokenizer.json":  # that one is large, and read where its ids are checked
            check_json(path)
    # The hub's cache keeps files in blobs/, beside snapshots/, and links to them.
    home = folder.resolve()
    home = home.parents[1] if home.parent.name == "snapshots" else home
    astray = sorted(str(path) for path in templates if home not in path.resolve().parents)
    if astray:
        raise UserError(f"{', '.join(astray)}: a link out of {folder}.", "Put the file itself there, or remove the link.")


def check_json(path: Path) -> None:
    """Raises UserError where a file isn't JSON."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read as JSON: {error}.", "Fetch the model again.") from None


def _named(folder: Path) -> set[Path]:
    return {path for pattern in _COMPANIONS for path in folder.glob(pattern)}


def custom_code(folder: Path) -> list[str]:
    """Names of Python files of a Hugging Face folder: they are carried like the rest, and nothing here runs them."""
    return [path.name for path in companions(folder) if path.suffix == ".py"]


def copy_companions(source: Path, target: Path, edited: dict[str, str] | None = None) -> dict[str, str]:
    """Copies a folder's companions (edited: file -> text to write instead), synced. Returns file -> sha256."""
    target.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for path in companions(source):
        name = path.relative_to(source).as_posix()
        text = (edited or {}).get(name)
        copy = target / name
        if text is None:
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
            sync(copy)
        else:
            write_synced(copy, text)
        hashes[name] = hash_file(copy)
    return hashes


def carry(source: str | Path, target: str | Path) -> None:
    """Gives a training checkpoint what a conversion back needs: source's hf/ folder and a manifest without hashes.

    source is a converted torch_dist folder, target the folder of the checkpoint just saved.
    """
    origin, place = Path(source), Path(target)
    manifest = read_manifest(origin)
    root = next((folder for folder in own_places(origin) if (folder / HF_FOLDER / "config.json").is_file()), None)
    if manifest is None or root is None:
        raise UserError(
            f"{origin} carries no {MANIFEST} and {HF_FOLDER}/config.json.", "Convert it with `openclaw convert-ckpt`."
        )
    hashes = copy_companions(root / HF_FOLDER, place / HF_FOLDER)
    write_manifest(place, Manifest("torch_dist", str(origin), manifest.architecture, manifest.vocabulary, {}, hashes))


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_synced(path: Path, text: str) -> None:
    """Writes text and syncs it to disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Syncs a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
