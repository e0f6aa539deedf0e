"""Starts the ranks of a test world: a process that has imported everything forks one child per rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def launch(program: Path, function: str, ranks: int, folder: Path, timeout_s: float = 500) -> None:
    """Run program.function(rank, ranks, folder, meet) in so many processes; raise with the first failure's output."""
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(Path(__file__)), str(program), function, str(ranks), str(folder)]
    with (folder / "parent.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        logs = "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("*.log")))
        raise AssertionError(f"{program.name}:{function} ended with {code}:\n{logs}")


class Meet:
    """Rendezvous of the first so many ranks under a name; rank 0 tells the others its port in a file."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder = rank, folder

    def __call__(self, name: str, world: int) -> Any:
        from openclaw_core.models.megatron import parallel

        path = self.folder / f"{name}.port"
        if self.rank == 0:
            meeting = parallel.host(world)
            path.with_suffix(".tmp").write_text(str(meeting.port))
            path.with_suffix(".tmp").rename(path)
            return meeting
        while not path.exists():
            time.sleep(0.02)
        return parallel.Rendezvous("127.0.0.1", int(path.read_text()), self.rank, world)


def main() -> None:
    """Fork the ranks and end with the first failure's exit code; the others are ended with it."""
    import openclaw_core.models.megatron.core  # noqa: F401

    program, function, ranks, folder = sys.argv[1:]
    children = [_fork(program, function, rank, int(ranks), Path(folder)) for rank in range(int(ranks))]
    while children:
        pid, status = os.wait()
        children.remove(pid)
        if status:
            for child in children:
                os.kill(child, signal.SIGKILL)
            sys.exit(1)


def _fork(program: str, function: str, rank: int, ranks: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        import runpy

        runpy.run_path(program)[function](rank, ranks, folder, Meet(rank, folder))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
