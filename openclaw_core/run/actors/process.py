"""What every actor does first: its own log file, no network look-ups, and a record in the run's manifest with its devices."""

from __future__ import annotations

import os

from openclaw_core.run.processes import ProcessRecord
from openclaw_core.run.runfolder import RunFolder


def enter(run: RunFolder, role: str, index: int) -> None:
    """Sends this process's output to logs/<role>-<index>.log, keeps libraries off the network, and records the process."""
    name = f"{role}-{index}"
    log = run.log(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(target, stream)
    os.close(target)
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    record = ProcessRecord.of(name, os.getpid())
    if record is not None:
        run.add_processes(record)
    if devices := os.environ.get("CUDA_VISIBLE_DEVICES"):
        run.update(facts={f"devices of {name}": devices})
