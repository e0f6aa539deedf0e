"""A rank that compares the shipped model with numbers that it is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.run import numerics


def compare(rank: int, ranks: int, folder: Path, meet: Any) -> None:
    given = torch.load(folder / "given.pt")
    arch = architecture_from_hf(given["model"])
    found = numerics._ours(arch, Path(given["model"]), given["ids"], given["theirs"], torch.float32, cells=False)
    (folder / "found.json").write_text(json.dumps(found))
