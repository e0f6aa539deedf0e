"""Folders that must not become the running weights, each refused before anything changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_core.errors import UsageError
from openclaw_core.rollout.engines.embedded.model import load_model
from openclaw_core.rollout.engines.errors import EngineError

PROMPT = [10, 20, 30, 40, 50]
FILE = "model.safetensors"


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        held = load_file(folder / FILE)
        change(held)
        save_file(held, folder / FILE)

    return edit


def config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def truncate(folder: Path) -> None:
    data = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(data[:-100])


def second_source(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}}))


def outside_index(folder: Path) -> None:
    names = load_file(folder / FILE)
    (folder / FILE).rename(folder / "part.safetensors")
    places = dict.fromkeys(names, "../model/part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


NORM = "model.norm.weight"
BAD = {
    "missing": (tensors(lambda t: t.pop(NORM)), f"missing {NORM}"),
    "surplus": (tensors(lambda t: t.update(extra=torch.zeros(2))), "not in the model extra"),
    "shape": (tensors(lambda t: t.update({NORM: torch.zeros(63)})), r"model.norm.weight is \[63\] instead of \[64\]"),
    "nan": (tensors(lambda t: t[NORM].fill_(float("nan"))), "finite"),
    "untied": (tensors(lambda t: t.update({"lm_head.weight": torch.zeros(320, 64)})), "differs from the input embedding"),
    "truncated": (truncate, "can't be read"),
    "two sources": (second_source, "it holds both"),
    "no weights": (lambda folder: (folder / FILE).unlink(), "it holds neither"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "outside": (outside_index, "outside its folder"),
    "rope": (config(rope_parameters={"rope_type": "default", "rope_theta": 5.0}), "rope_parameters"),
    "heads": (config(num_attention_heads=8, head_dim=8), "num_attention_heads is 8 instead of 4"),
    "not there": (shutil.rmtree, "has no config.json"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_folder_leaves_the_old_weights(case: str, running: Any, other_folder: Path, tmp_path: Path) -> None:
    edit, words = BAD[case]
    bad = tmp_path / "model"
    shutil.copytree(other_folder, bad)
    edit(bad)
    before = await running.client.score(PROMPT)
    with pytest.raises(EngineError, match=words) as caught:
        await running.client.update_weights_from_disk(str(bad), 9)
    assert caught.value.status == 400
    assert await running.client.score(PROMPT) == before
    assert await running.client.weight_version() == 0


async def test_sharded_folders_are_read(running: Any, other_folder: Path, tmp_path: Path) -> None:
    held = load_file(other_folder / FILE)
    folder = tmp_path / "sharded"
    shutil.copytree(other_folder, folder, ignore=shutil.ignore_patterns(FILE))
    names = sorted(held)
    places = {name: f"part-{row % 2}.safetensors" for row, name in enumerate(names)}
    for part in set(places.values()):
        save_file({name: held[name] for name in names if places[name] == part}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    await running.client.update_weights_from_disk(str(folder), 2)
    sharded = await running.client.score(PROMPT)
    await running.client.update_weights_from_disk(str(other_folder), 3)
    assert await running.client.score(PROMPT) == sharded


def test_a_model_with_missing_weights_is_not_served(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    BAD["missing"][0](copy)
    with pytest.raises(UsageError, match=NORM):
        load_model(copy, "cpu", "float32")


def test_a_family_that_is_not_known_is_not_served(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    config(model_type="gpt2")(copy)
    with pytest.raises(UsageError, match=r"'gpt2'.*use SGLang"):
        load_model(copy, "cpu", "float32")
