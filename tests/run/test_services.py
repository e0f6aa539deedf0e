from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from openclaw_core.run.process_tree import end, tree
from openclaw_core.run.processes import ProcessRecord
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.runs import create_run
from openclaw_core.run.services import Service, ServiceError, stop_survivors, survivors

SERVER = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("child", child.pid, "secret", len(os.environ.get("API_KEY", "")), flush=True)
with open("port.new", "w") as file:
    file.write("4711")
os.rename("port.new", "port")
time.sleep(600)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path / "runs", "r")


@pytest.fixture
def service(run: RunFolder, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def make(*words: str, code: str = SERVER, **fields: object) -> Service:
        argv = [sys.executable, "-S", "-c", f"import os; os.chdir({str(tmp_path)!r})\n" + textwrap.dedent(code), *words]
        known = {"env": {"API_KEY": "k" * 9}, "log_file": run.log("dummy"), "port_file": tmp_path / "port", "run": run}
        made.append(Service("dummy", argv, **{**known, **fields}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for item in made:
        item.stop(grace_s=0.1)


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def grandchild(service: Service) -> int:
    return int(service.log_tail().split()[1])


def test_a_service_starts_is_recorded_and_ends_with_all_it_started(service: Callable[..., Service], run: RunFolder) -> None:
    item = service()
    assert item.start(20.0) == 4711
    child = grandchild(item)
    assert item.poll() is None
    assert {record.pid for record in survivors(run)} == {item.pid, child}
    assert {record.role for record in run.read().processes} == {"dummy"}
    item.stop()
    assert item.poll() == -signal.SIGTERM
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert survivors(run) == []


def test_secrets_are_in_the_environment_alone(service: Callable[..., Service], run: RunFolder) -> None:
    item = service()
    item.start(20.0)
    assert "secret 9" in item.log_tail()
    assert item.pid is not None
    assert "kkkk" not in " ".join(psutil.Process(item.pid).cmdline())
    assert "kkkk" not in run.manifest_path.read_text()


def test_one_that_ignores_sigterm_is_killed(service: Callable[..., Service]) -> None:
    item = service("stubborn")
    item.start(20.0)
    item.stop(grace_s=0.2)
    assert item.poll() == -signal.SIGKILL


def test_start_waits_for_the_check(service: Callable[..., Service]) -> None:
    asked: list[int] = []

    def check(port: int) -> bool:
        asked.append(port)
        return len(asked) == 3

    service(check=check).start(20.0)
    assert asked == [4711] * 3


def test_one_that_dies_at_once_is_told_with_its_last_words(service: Callable[..., Service]) -> None:
    item = service(code="import sys; sys.exit('no such model')")
    with pytest.raises(ServiceError, match="dummy ended with exit code 1") as caught:
        item.start(20.0)
    assert "no such model" in caught.value.log_tail


def test_a_missing_program_is_told(service: Callable[..., Service]) -> None:
    item = service()
    item.argv = ["/no/such/program"]
    with pytest.raises(ServiceError) as caught:
        item.start(20.0)
    assert "/no/such/program: No such file or directory" in caught.value.log_tail


def test_one_that_never_gets_ready_is_ended(service: Callable[..., Service], run: RunFolder) -> None:
    item = service(check=lambda port: False)
    with pytest.raises(ServiceError, match="wasn't ready within 2 s"):
        item.start(2.0)
    assert item.poll() is not None
    assert survivors(run) == []


def test_death_is_told_with_its_cause(service: Callable[..., Service]) -> None:
    item = service()
    item.start(20.0)
    assert item.pid is not None
    os.kill(item.pid, signal.SIGKILL)
    assert wait_for(lambda: item.poll() is not None)
    with pytest.raises(ServiceError, match="SIGKILL"):
        item.ensure_alive()


def test_children_of_a_dead_service_are_known_and_ended(service: Callable[..., Service], run: RunFolder) -> None:
    item = service()
    item.start(20.0)
    child = grandchild(item)
    assert item.pid is not None
    os.kill(item.pid, signal.SIGKILL)
    assert wait_for(lambda: item.poll() is not None)
    assert [record.pid for record in survivors(run)] == [child]
    assert [record.pid for record in stop_survivors(run)] == [child]
    assert survivors(run) == []


def test_a_service_dies_with_its_parent(run: RunFolder, tmp_path: Path) -> None:
    parent = f"""
        import sys, threading, time
        from pathlib import Path
        from openclaw_core.run.runfolder import RunFolder
        from openclaw_core.run.services import Service
        run = RunFolder(Path({str(run.path)!r}))
        argv = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        service = Service("orphan", argv, {{}}, run.log("orphan"), run=run)
        starter = threading.Thread(target=service.start)
        starter.start()
        starter.join()
        time.sleep(0.3)
        print(service.poll() is None, service.pid, flush=True)
        time.sleep(600)
        """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(parent)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        alive, pid = process.stdout.readline().split()
        assert alive == "True", "the service must outlive the thread that asked for it"
        process.kill()
    assert wait_for(lambda: survivors(run) == []), pid


def test_a_reused_pid_is_never_signalled(run: RunFolder) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True) as stranger:
        record = ProcessRecord.of("engine", stranger.pid)
        assert record is not None
        old = replace(record, start=record.start + "0")
        run.add_processes(old)
        assert tree(old) == []
        assert stop_survivors(run) == []
        assert end([old], grace_s=0.1) == []
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(timeout=0.3)
        stranger.kill()


def test_the_manifest_stays_readable(service: Callable[..., Service], run: RunFolder) -> None:
    service().start(20.0)
    assert all(set(entry) >= {"pid", "start", "role"} for entry in json.loads(run.manifest_path.read_text())["processes"])
