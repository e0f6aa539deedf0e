"""Each patch is still needed by this megatron-core, and helps."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[2]
launch = runpy.run_path(str(TESTS / "worlds.py"))["launch"]
PATCHES = ("patch_device", "patch_factories", "patch_streams", "patch_rng", "patch_tensor_type")
RESUME = ("patch_state_before_first_step", "patch_missing_step")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the shim does nothing where CUDA is")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shim")
    launch(Path(__file__).with_name("shim_program.py"), "shim_patches", 1, folder)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("name", PATCHES + RESUME)
def test_fails_without_and_works_with_the_patch(found, name):
    outcomes = found[name]
    before, after = outcomes[: len(outcomes) // 2], outcomes[len(outcomes) // 2 :]
    assert "works" not in before
    assert set(after) == {"works"}


def test_the_step_is_counted_once_for_all_parameters_without_the_patch(found):
    without, with_patch = found["patch_shared_step"]
    assert without[0] > 2, "all parameters shared one step tensor"
    assert with_patch == [2.0]
