"""What every actor does first: its own log file, no network look-ups, and a way to be recognised later."""

from __future__ import annotations

import os
from pathlib import Path


def enter(run_folder: str, role: str, index: int) -> None:
    """Sends stdout and stderr of this process to logs/<role>-<index>.log and keeps libraries off the network."""
    log = Path(run_folder) / "logs" / f"{role}-{index}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(target, stream)
    os.close(target)
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
