"""The trainer's checkpoints and exports: written beside their place, renamed when complete."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from openclaw_core.checkpoint.hf import HfWriter
from openclaw_core.checkpoint.manifest import HF_FOLDER, carry, copy_companions, read_manifest, sync
from openclaw_core.checkpoint.sniff import sniff
from openclaw_core.errors import UserError
from openclaw_core.models.megatron.builder import DTYPES
from openclaw_core.models.megatron.core import CheckpointingException, dist_checkpointing
from openclaw_core.models.megatron.hf_weights import hf_shapes, whole_tensors
from openclaw_core.run.saved import COMPLETE, check_complete
from openclaw_core.run.trainer_optimizer import apply_settings

if TYPE_CHECKING:
    from openclaw_core.run.trainer import Trainer

_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


def save(trainer: Trainer, folder: Path, step: int) -> None:
    """Every rank writes its part; rank 0 adds what a conversion needs and renames the folder into place."""

    def write(partial: Path) -> None:
        state = _state(trainer, loading=False)
        state["trainer"] = {"step": step, "architecture": asdict(trainer.arch), "random": _random_state()}
        dist_checkpointing.save(state, str(partial), content_metadata=_METADATA)

    def finish(partial: Path) -> None:
        found = sniff(trainer.source)
        if found.kind == "hf":
            copy_companions(found.folder, partial / HF_FOLDER)
        elif read_manifest(found.folder) is not None:
            carry(found.folder, partial)
        sizes = {str(p.relative_to(partial)): p.stat().st_size for p in sorted(partial.rglob("*")) if p.is_file()}
        (partial / COMPLETE).write_text(json.dumps({"step": step, "files": sizes}, indent=1) + "\n", encoding="utf-8")

    _publish(folder, write, finish)


def load(trainer: Trainer, folder: Path) -> int:
    """Weights, optimizer state and random state; returns the step. Raises UserError for an incomplete checkpoint."""
    check_complete(folder)
    state = _state(trainer, loading=True)
    try:
        loaded = dist_checkpointing.load(state, str(folder))
    except (CheckpointingException, KeyError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder} can't be continued from: {error}.", "Resume with the model that it was saved with.") from error
    trainer.model.load_state_dict(loaded["model"], strict=False)
    trainer.optimizer.load_state_dict(loaded["optimizer"])
    apply_settings(trainer.optimizer, trainer.optimizer_settings)
    _set_random_state(loaded["trainer"]["random"])
    return int(loaded["trainer"]["step"])


def export_hf(trainer: Trainer, folder: Path) -> None:
    """Weights gathered one tensor at a time to rank 0, which writes them with config and tokenizer."""
    dtype = DTYPES[trainer.train.dtype]

    def write(partial: Path) -> None:
        shapes = {name: (shape, dtype) for name, shape in hf_shapes(trainer.arch).items()}
        writer = HfWriter(partial, shapes) if dist.get_rank() == 0 else None
        try:
            for name, tensor in whole_tensors(trainer.model):
                assert writer is not None
                writer.write(name, tensor)
        finally:
            if writer is not None:
                writer.close()

    def finish(partial: Path) -> None:
        origin = _companions_folder(trainer.source)
        config = json.loads((origin / "config.json").read_text(encoding="utf-8"))
        name = str(dtype).removeprefix("torch.")
        edited = {**{k: v for k, v in config.items() if k != "torch_dtype"}, "dtype": name}
        copy_companions(origin, partial, {"config.json": json.dumps(edited, indent=2, ensure_ascii=False) + "\n"})

    _publish(folder, write, finish)


def _companions_folder(source: Path) -> Path:
    found = sniff(source)
    carried = (found.folder, found.root, found.folder.parent)
    places = [found.folder] if found.kind == "hf" else [place / HF_FOLDER for place in carried]
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise UserError(f"{source} carries no config.json and tokenizer.", "Convert it with `openclaw convert-ckpt`.")


def _publish(folder: Path, write: Callable[[Path], None], finish: Callable[[Path], None]) -> None:
    """write(partial) on all ranks, finish(partial) on rank 0, then one rename. An existing folder is replaced."""
    partial, old = folder.with_name(f".{folder.name}.partial"), folder.with_name(f".{folder.name}.old")
    first = dist.get_rank() == 0
    if first:
        for leftover in (partial, old):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    write(partial)
    dist.barrier()
    if first:
        finish(partial)
        for place, _, files in os.walk(partial):
            for name in files:
                sync(Path(place) / name)
            sync(Path(place))
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


def _state(trainer: Trainer, *, loading: bool) -> dict[str, Any]:
    model = trainer.model.sharded_state_dict()
    return {"model": model, "optimizer": trainer.optimizer.sharded_state_dict(model, is_loading=loading, metadata=_METADATA)}


def _random_state() -> dict[str, Any]:
    """Plain values only: checkpoints are read without running code. Nothing random differs between ranks."""
    name, keys, *rest = np.random.get_state()
    version, internal, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [str(name), np.asarray(keys).tolist(), *rest],
        "python": [version, list(internal), gauss],
    }


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
