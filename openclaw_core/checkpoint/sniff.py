"""Says what a folder holds, so that the wrong kind is named before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from openclaw_core.checkpoint.names import HF_FOLDER, OLD, PARTIAL, TRACKER
from openclaw_core.checkpoint.weight_files import INDEX, SAFE_WAY, pickled
from openclaw_core.errors import UserError
from openclaw_core.files import expanded

Kind = Literal["hf", "torch_dist"]


@dataclass(frozen=True)
class Found:
    """A checkpoint: its kind, the folder that was meant, and the one that holds the weights."""

    kind: Kind
    root: Path
    folder: Path


def sniff(path: str | Path, step: int | None = None) -> Found:
    """What path holds: a Hugging Face folder, a torch_dist checkpoint, or a run folder (its newest checkpoint, or step).

    Raises UserError that says what the folder is instead and what to do about it. No heavy import, no weights read.
    """
    root = expanded(path)
    if not root.exists():
        hub = (
            "Download it first: `hf download ORG/MODEL --local-dir FOLDER`."
            if str(path).count("/") == 1 and not str(path).startswith((".", "/", "~"))
            else "Check the path."
        )
        raise UserError(f"{path} doesn't exist.", hub)
    if not root.is_dir():
        raise UserError(f"{path} is a file.", "Name the folder of a Hugging Face model or a torch_dist checkpoint.")
    if root.name.startswith(".") and root.name.endswith((PARTIAL, OLD)):
        raise UserError(f"{path} is what an interrupted conversion left behind.", "Convert again.")
    if (root / "run.json").is_file():
        return _from_run(root, step)
    if step is not None:
        raise UserError(
            f"{path} isn't a run folder, so there is no step {step} in it.", "Leave --step out, or name a run folder."
        )
    return _from_folder(root)


def _from_folder(root: Path) -> Found:
    names = {entry.name for entry in root.iterdir()}
    if ".metadata" in names:
        return Found("torch_dist", root, root)
    if TRACKER in names:
        return Found("torch_dist", root, _tracked(root))
    weights = pickled(names) or any(name.endswith(".safetensors") or name == INDEX for name in names)
    if "config.json" in names and weights:
        return Found("hf", root, root)
    raise UserError(f"{root} holds no checkpoint: {_describe(root, names)}", "")


def _describe(root: Path, names: set[str]) -> str:
    if "metadata.json" in names or any(name.endswith(".distcp") for name in names):
        return "its torch_dist is half-written (no .metadata). Save or convert it again."
    if any(name.startswith("mp_rank_") for name in names):
        return "it is megatron's old per-rank format. Load it with the trainer that wrote it and save it as torch_dist."
    if "adapter_config.json" in names:
        return "it is a LoRA adapter. Merge it into its base model first."
    if any(name.endswith(".gguf") for name in names):
        return "it holds GGUF files. Use the model's safetensors release."
    if any(name.startswith("iter_") for name in names):
        return f"it has iter_* folders but no {TRACKER}. Name one of them."
    if (root / "release" / ".metadata").is_file():
        return f"it has release/ but no {TRACKER}. Write the word release into a file of that name."
    pickles = pickled(names)
    if pickles:
        return f"its weights are pickle ({pickles[0]}), which can run code when read. {SAFE_WAY}"
    if any(name.endswith(".safetensors") for name in names):
        return "it has safetensors files but no config.json. Fetch config.json too."
    if "config.json" in names or "tokenizer.json" in names:
        return "it has a config or tokenizer but no weights. Fetch the *.safetensors files too."
    return "neither config.json with *.safetensors (Hugging Face) nor .metadata (torch_dist) is there. Check the path."


def resolve(path: str | Path) -> Path:
    """The folder that holds .metadata: path itself, or the one that path's tracker file names.

    Raises UserError when there is neither.
    """
    folder = Path(path)
    if (folder / ".metadata").is_file():
        return folder
    if (folder / TRACKER).is_file():
        return _tracked(folder)
    raise UserError(
        f"{folder} isn't a complete torch_dist checkpoint: no .metadata and no {TRACKER}.", "Convert or save it again."
    )


def _tracked(root: Path) -> Path:
    try:
        step = (root / TRACKER).read_text(encoding="utf-8", errors="replace").strip()[:40]
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        remedy = "Name the folder of one step, or save or convert it again."
        raise UserError(f"{root / TRACKER} can't be read: {why}.", remedy) from None
    inner = root / (f"iter_{int(step):07d}" if step.isdecimal() else "release")
    if (step != "release" and not step.isdecimal()) or not (inner / ".metadata").is_file():
        raise UserError(f"{root / TRACKER} names {step!r}, which isn't there completely.", "Save or convert it again.")
    return inner


def _from_run(run: Path, step: int | None) -> Found:
    steps = _saved(run)
    if not steps:
        raise UserError(
            f"The run {run} has no checkpoints yet.", "Wait for its first save (train.save_every), or stop it: a stop saves."
        )
    if step is not None and step not in steps:
        raise UserError(f"The run {run} has no checkpoint of step {step}.", f"Saved steps: {', '.join(map(str, sorted(steps)))}.")
    folder = steps[max(steps) if step is None else step]
    found = _from_folder(folder)
    return Found("torch_dist", folder, found.folder)


def _saved(run: Path) -> dict[int, Path]:
    folders = (run / "checkpoints").glob("step-*")
    return {int(folder.name[5:]): folder for folder in folders if folder.name[5:].isdecimal()}


def step_of_run(run: str | Path, source: str) -> int | None:
    """The step that source, the path of a checkpoint as a manifest has it, is of; None where it is no run's, or run is none.

    Raises UserError where run, wherever it lies by now, has other steps but not that one.
    """
    root, stated = expanded(run), re.search(r"/checkpoints/step-(\d+)(/|$)", source)
    if stated is None or not (root / "run.json").is_file():
        return None
    step, steps = int(stated[1]), _saved(root)
    if steps and step not in steps:
        raise UserError(
            f"The conversion was made from step {step}, which the run {run} has no more.",
            f"Leave the run out to compare with the manifest's hashes; --step compares with one of its steps: "
            f"{', '.join(map(str, sorted(steps)))}.",
        )
    return step


def carried_config(found: Found) -> Path | None:
    """The folder with the Hugging Face config that belongs to a checkpoint: itself, or hf/ beside a torch_dist."""
    if found.kind == "hf":
        return found.root
    places = [place / HF_FOLDER for place in own_places(found.folder)]
    return next((place for place in places if (place / "config.json").is_file()), None)


def own_places(folder: Path) -> list[Path]:
    """The folder with .metadata, and the one above where that is the checkpoint's own (its tracker file names folder)."""
    tracker = folder.parent / TRACKER
    return [folder, folder.parent] if tracker.is_file() else [folder]
