"""Tiny models whose tokenizers the library loads."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

tools = runpy.run_path(str(Path(__file__).parents[1] / "checkpoint" / "conftest.py"))
tokenizer = runpy.run_path(str(Path(__file__).with_name("pairs.py")))["tokenizer"]


@pytest.fixture
def make(tmp_path):
    def made(name: str, family: str = "qwen3", **changes) -> Path:
        cfg = tools["config"](family, **changes)
        folder = tools["write_folder"](tmp_path / name, cfg, tools["weights"](cfg))
        tokenizer(folder / "tokenizer.json")
        return folder

    return made
