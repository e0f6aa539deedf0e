"""What this machine has: cores, the memory that processes may use, free memory of GPUs. Reads files and nvidia-smi only."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
SMI = "nvidia-smi"


@dataclass(frozen=True)
class Gpu:
    """One GPU by its physical id; holders are (pid, bytes) of the processes that hold memory on it."""

    index: int
    total_bytes: int
    free_bytes: int
    holders: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Host:
    """This machine. memory_bytes is the smaller of its main memory and its control group's limit; source says which."""

    cpus: int
    memory_bytes: int
    source: str
    gpus: tuple[Gpu, ...] = ()


def read_host(*, gpus: bool = False) -> Host:
    """This machine as it is now; GPUs only where asked for."""
    total, limit = main_memory(), cgroup_limit()
    if limit is not None and limit < total:
        return Host(usable_cpus(), limit, "the control group's limit", read_gpus() if gpus else ())
    return Host(usable_cpus(), total, "this machine", read_gpus() if gpus else ())


def usable_cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main_memory(meminfo: Path = MEMINFO) -> int:
    """Bytes of main memory."""
    try:
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cgroup_limit(root: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The tightest memory limit of this process's control groups (version 2, else 1); None where there is none."""
    limits = [_limit(path) for path in _limit_files(root, own)]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_files(root: Path, own: Path) -> list[Path]:
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        lines = []
    files = [root / "memory.max", root / "memory/memory.limit_in_bytes"]
    for fields in lines:
        if len(fields) == 3 and (fields[1] == "" or "memory" in fields[1].split(",")):
            base, name = (root, "memory.max") if fields[1] == "" else (root / "memory", "memory.limit_in_bytes")
            here = base / fields[2].lstrip("/")
            files += [folder / name for folder in (here, *here.parents) if folder.is_relative_to(base)]
    return files


def _limit(path: Path) -> int | None:
    try:
        value = int(path.read_text())
    except (OSError, ValueError):
        return None
    return value if 0 < value < 2**60 else None


def read_gpus() -> tuple[Gpu, ...]:
    """Every GPU that nvidia-smi shows; none where it isn't there. Memory that it doesn't tell counts as free."""
    rows = _smi("--query-gpu=index,uuid,memory.total,memory.free")
    held: dict[str, list[tuple[int, int]]] = {}
    for uuid, pid, used in _smi("--query-compute-apps=gpu_uuid,pid,used_memory"):
        held.setdefault(uuid, []).append((int(pid), _mib(used)))
    return tuple(
        Gpu(int(index), _mib(total), _mib(free if free.isdigit() else total), tuple(held.get(uuid, ())))
        for index, uuid, total, free in rows
    )


def _smi(query: str) -> list[list[str]]:
    try:
        done = subprocess.run(
            [SMI, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _mib(text: str) -> int:
    return int(text) * 2**20 if text.isdigit() else 0
