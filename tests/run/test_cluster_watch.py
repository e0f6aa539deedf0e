"""The end of the cluster is told, one that was asked for is no news; plain programs of those names stand in for Ray's."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openclaw_core.run.cluster_watch import WATCHED

SCRIPT = """
import subprocess, sys, time
from openclaw_core.errors import UserError
from openclaw_core.run.cluster_watch import ClusterWatch, end_here
from openclaw_core.run.progress import SilentWatcher
children = [subprocess.Popen([path, "25"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for path in sys.argv[4:]]
for child, path in zip(children, sys.argv[4:]):
    while open(f"/proc/{child.pid}/comm").read().strip() != path.rpartition("/")[2]:
        time.sleep(0.01)
def lost(name):
    error = UserError(f"{name} is gone.", "Go on.")
    end_here(error, tell=SilentWatcher().last, before=lambda what: print("noted", what, flush=True))
watch = ClusterWatch(lost)
if sys.argv[2] == "stopped":
    watch.stop()
children[int(sys.argv[1])].kill()
children[int(sys.argv[1])].wait()
time.sleep(float(sys.argv[3]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="watches by pidfd")
@pytest.mark.parametrize(("number", "state"), [(0, "running"), (1, "running"), (0, "stopped")])
def test_the_end_is_told_at_once(tmp_path: Path, number: int, state: str) -> None:
    programs = [tmp_path / name for name in WATCHED]
    for program in programs:
        shutil.copy(shutil.which("sleep") or "", program)
    began = time.monotonic()
    wait = "30" if state == "running" else "0.5"
    arguments = [sys.executable, "-c", SCRIPT, str(number), state, wait, *map(str, programs)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert time.monotonic() - began < 20
    if state == "running":
        name = WATCHED[number]
        assert (done.returncode, done.stdout) == (1, f"noted {name} is gone.\n")
        assert done.stderr == f"error: {name} is gone. Go on.\n"
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
