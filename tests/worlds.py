"""Starts the ranks of a test world: each is a process that runs one function of a program file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def launch(program: Path, function: str, ranks: int, folder: Path, timeout_s: float = 240, ports: int = 8) -> None:
    """Run program.function(rank, ranks, folder, ports) in so many processes; raise with the first failure's output."""
    numbers = ",".join(map(str, free_ports(ports)))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, str(Path(__file__)), str(program), function]
    outputs = [(folder / f"rank{rank}.log").open("w") for rank in range(ranks)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(folder), numbers], stdout=out, stderr=subprocess.STDOUT, env=environment
        )
        for rank, out in enumerate(outputs)
    ]
    deadline = time.monotonic() + timeout_s
    failed: int | None = None
    try:
        waiting = dict(enumerate(processes))
        while waiting and failed is None and time.monotonic() < deadline:
            for rank, process in list(waiting.items()):
                if process.poll() is not None:
                    del waiting[rank]
                    failed = rank if process.returncode else failed
            time.sleep(0.05)
        if waiting and failed is None:
            failed = min(waiting)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for out in outputs:
            out.close()
    if failed is not None:
        tail = (folder / f"rank{failed}.log").read_text()[-4000:]
        raise AssertionError(f"rank {failed} of {program.name}:{function} failed or hung:\n{tail}")


def main() -> None:
    import runpy
    import warnings

    warnings.filterwarnings("ignore")
    program, function, rank, ranks, folder, ports = sys.argv[1:]
    run = runpy.run_path(program)[function]
    run(int(rank), int(ranks), Path(folder), [int(port) for port in ports.split(",")])


if __name__ == "__main__":
    main()
