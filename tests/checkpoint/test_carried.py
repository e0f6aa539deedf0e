"""Tensors beside a text tower: copied, hashed, compared, put back, and missed where they are gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_core.checkpoint import sides
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.hf import read_header
from openclaw_core.checkpoint.plan import Plan
from openclaw_core.checkpoint.recheck import recheck
from openclaw_core.errors import Findings, UserError

PATCHES = "model.visual.patch_embed.proj.weight"


def flip(path, name):
    """One bit of a tensor in a safetensors file."""
    with path.open("r+b") as file:
        file.seek(read_header(path)[name].start)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


def test_a_text_tower_is_converted_and_its_vision_tower_carried(vision, read_hf, tmp_path):
    done = convert(plan_conversion(vision, tmp_path / "td"))
    assert len(done.plan.carried) == 2
    convert(plan_conversion(tmp_path / "td", tmp_path / "back"))
    a, b = read_hf(vision), read_hf(tmp_path / "back")
    assert a.keys() == b.keys()
    assert all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)
    manifest = json.loads((tmp_path / "td" / "openclaw.json").read_text())
    assert "carried.safetensors" in manifest["companions"]


def test_an_export_without_its_vision_tower_is_refused(vision, read_hf, tmp_path):
    convert(plan_conversion(vision, tmp_path / "td"))
    (tmp_path / "td" / "hf" / "carried.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.visual"):
        plan_conversion(tmp_path / "td", tmp_path / "back")
    convert(plan_conversion(tmp_path / "td", tmp_path / "back", hf_config=vision))
    assert read_hf(tmp_path / "back").keys() == read_hf(vision).keys()


def test_a_release_without_its_vision_tower_is_refused(vision, tmp_path):
    tensors = {name: tensor for name, tensor in load_file(vision / "model.safetensors").items() if ".visual." not in name}
    save_file(tensors, vision / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"model\.visual\.\* are nowhere\. Fetch the rest of the model"):
        plan_conversion(vision, tmp_path / "td")
    config = json.loads((vision / "config.json").read_text())
    del config["vision_config"]
    (vision / "config.json").write_text(json.dumps(config))
    convert(plan_conversion(vision, tmp_path / "td"))
    convert(plan_conversion(tmp_path / "td", tmp_path / "back"))
    assert load_file(tmp_path / "back" / "model.safetensors").keys() == tensors.keys()


def test_carried_tensors_are_checked_and_in_the_manifest(vision, tmp_path):
    done = convert(plan_conversion(vision, tmp_path / "td"))
    back = convert(plan_conversion(tmp_path / "td", tmp_path / "back"))
    for folder, found in (("td", done), ("back", back)):
        listed = json.loads((tmp_path / folder / "openclaw.json").read_text())["carried"]
        assert {name: (entry["shape"], entry["dtype"]) for name, entry in listed.items()} == {
            PATCHES: ([4, 3, 2, 2, 2], "bfloat16"),
            "model.visual.blocks.0.norm1.bias": ([7], "float32"),
        }
        assert {check.name: check.sha256 for check in found.checks if check.name in listed} == {
            name: entry["sha256"] for name, entry in listed.items()
        }


def test_a_carried_tensor_that_differs_after_writing_fails(vision, tmp_path, monkeypatch):
    honest = sides.write_carried

    def flipping(reader, names, folder):
        sums = honest(reader, names, folder)
        flip(folder / "carried.safetensors", PATCHES)
        return sums

    monkeypatch.setattr(sides, "write_carried", flipping)
    with pytest.raises(Findings, match=rf"{PATCHES} differs from hf/carried\.safetensors"):
        convert(plan_conversion(vision, tmp_path / "td"))
    assert not (tmp_path / "td").exists()


@pytest.mark.parametrize("target", ["td", "back"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_carried_tensor_that_changed_later_is_named(vision, tmp_path, target, alone):
    convert(plan_conversion(vision, tmp_path / "td"))
    convert(plan_conversion(tmp_path / "td", tmp_path / "back"))
    if alone:
        shutil.rmtree(vision)
        if target == "back":
            shutil.rmtree(tmp_path / "td")
    assert not recheck(tmp_path / target).problems
    if target == "td":
        inner = recheck(tmp_path / "td" / "release")
        assert not inner.problems
        assert inner.companions["carried.safetensors"]
    place = tmp_path / "td" / "hf" / "carried.safetensors" if target == "td" else tmp_path / "back" / "model.safetensors"
    flip(place, PATCHES)
    assert (f"{PATCHES} differs.", "") in recheck(tmp_path / target).problems
    tensors = load_file(place)
    del tensors[PATCHES]
    save_file(tensors, place, {"format": "pt"})
    assert (f"{PATCHES} differs.", "") in recheck(tmp_path / target).problems


def test_a_conversion_killed_among_the_carried_tensors_is_gone_on_with(vision, tmp_path):
    """What lies there of them is written anew."""
    program = (
        "import time\nfrom openclaw_core.checkpoint import sides\n"
        "from openclaw_core.checkpoint.convert import convert, plan_conversion\n"
        "honest = sides.write_carried\n"
        "def slow(*given):\n    honest(*given)\n    print('written', flush=True)\n    time.sleep(60)\n"
        "sides.write_carried = slow\n"
        f"convert(plan_conversion({str(vision)!r}, {str(tmp_path / 'td')!r}))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline().strip() == "written"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    path = tmp_path / ".td.partial" / "hf" / "carried.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    done = convert(plan_conversion(vision, tmp_path / "td"))
    assert done.kept
    assert not recheck(tmp_path / "td", vision).problems


def test_room_is_asked_for_carried_tensors_too(vision, tmp_path, monkeypatch):
    plan = plan_conversion(vision, tmp_path / "td")
    assert plan.carried_bytes == 4 * 3 * 8 * 2 + 7 * 4
    monkeypatch.setattr(Plan, "carried_bytes", 10**15)
    with pytest.raises(UserError, match=r"the result takes 1,020,000\.\d GB"):
        convert(plan)
