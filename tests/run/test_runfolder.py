from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from openclaw_core.errors import UsageError, UserError
from openclaw_core.run.processes import ProcessRecord, start_of
from openclaw_core.run.runfolder import RunFolder, file_key, valid_name
from openclaw_core.run.runs import create_run


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", "a..b", "-x", ".hidden", "a b", "x" * 65, "nul\0", "a\n"])
def test_names_that_could_be_paths_are_refused(tmp_path, name):
    with pytest.raises(UsageError, match="can't be used"):
        create_run(tmp_path, name)
    with pytest.raises(UsageError):
        RunFolder(tmp_path).log(name)
    assert list(tmp_path.iterdir()) == []


def test_keys_of_ids_are_plain_names():
    key = file_key("../../etc/passwd")
    assert valid_name(key) == key
    assert key != file_key("../../etc/passwd ")


def test_updates_merge_and_last(tmp_path):
    run = create_run(tmp_path, "demo", facts={"a": 1})
    run.update(state="running", facts={"b": 2}, versions={"torch": "2"})
    run.update(step=3, saved_step=2, versions={"ray": "3"})
    manifest = run.read()
    assert (manifest.state, manifest.step, manifest.saved_step) == ("running", 3, 2)
    assert manifest.facts == {"a": 1, "b": 2}
    assert manifest.versions == {"torch": "2", "ray": "3"}
    with pytest.raises(ValueError, match="state"):
        run.update(state="dancing")
    with pytest.raises(TypeError):
        run.update(colour="red")
    assert run.read() == manifest


def test_many_writers_lose_nothing_and_readers_see_whole_manifests(tmp_path):
    run = create_run(tmp_path, "demo")
    seen = []

    def write(number):
        for turn in range(10):
            run.update(facts={f"{number}.{turn}": 1})
            seen.append(run.read())

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(run.read().facts) == 40
    assert len(seen) == 40
    assert not list(run.path.glob(".run.json*"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"manifest_version": 9}',
        '{"manifest_version": 1}',
        '{"manifest_version": 1, "name": "x", "processes": [{"pid": 1}]}',
        '{"manifest_version": 1, "name": "x", "step": "x"}',
        '{"manifest_version": 1, "name": "x", "steps": null}',
        '{"manifest_version": 1, "name": "x", "facts": []}',
    ],
)
def test_a_broken_manifest_is_one_sentence(tmp_path, text):
    run = create_run(tmp_path, "demo")
    run.manifest_path.write_text(text)
    with pytest.raises(UserError, match=r"run\.json cannot be read"):
        run.read()


def test_fields_that_nothing_reads_are_neither_written_nor_in_the_way(tmp_path):
    run = create_run(tmp_path, "demo")
    written = json.loads(run.manifest_path.read_text())
    assert written.keys() == {
        "name", "state", "reason", "created", "updated", "step", "steps", "saved_step", "saved_at", "weight_version",
        "processes", "versions", "facts", "manifest_version",
    }  # fmt: skip
    run.manifest_path.write_text(json.dumps({**written, "resumed": 1.0}))
    assert run.read().name == "demo"


def test_checkpoints_are_listed_without_half_written_ones(tmp_path):
    run = create_run(tmp_path, "demo")
    for name in ("step-000010", "step-000002", ".step-000020.tmp", "step-000030.tmp", "notes"):
        (run.checkpoints / name).mkdir()
    assert run.checkpoint_steps() == [2, 10]


def test_the_tokenizer_is_found_in_the_weights_or_by_the_manifest(tmp_path):
    student = tmp_path / "student"
    student.mkdir()
    run = create_run(tmp_path, "demo", facts={"student": str(student)})
    assert run.tokenizer() is None
    (student / "tokenizer.json").write_text("{}")
    assert run.tokenizer() == student / "tokenizer.json"
    (run.weights / "v000001").mkdir()
    (run.weights / "v000001" / "tokenizer.json").write_text("{}")
    assert run.tokenizer() == run.weights / "v000001" / "tokenizer.json"


def test_processes_are_known_by_pid_and_start(tmp_path):
    run = create_run(tmp_path, "demo")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        record = ProcessRecord.of("engine", child.pid)
        run.add_processes(record)
        run.add_processes(record)
        assert run.survivors() == [record]
        stranger = ProcessRecord("engine", child.pid, "another start", record.since, record.host)
        assert stranger.alive() is False
        assert ProcessRecord("engine", child.pid, record.start, record.since, "elsewhere").alive() is None
        child.communicate(b"\n", timeout=20)
        assert record.alive() is False
        assert run.survivors() == []
        assert ProcessRecord.of("engine", child.pid) is None
    finally:
        child.kill()
        child.wait()


def test_a_zombie_has_ended():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_of(child.pid) is None
    child.wait()


def test_the_manifest_is_plain_json(tmp_path):
    run = create_run(tmp_path, "demo", facts={"rate": float("nan")})
    record = json.loads(run.manifest_path.read_text(), parse_constant=lambda text: pytest.fail(text))
    assert record["facts"] == {"rate": None}


def test_one_process_drives_a_run(tmp_path):
    run = create_run(tmp_path, "demo")
    holder = (
        "import sys, pathlib; from openclaw_core.run.runfolder import RunFolder\n"
        "with RunFolder(pathlib.Path(sys.argv[1])).held(): print('held', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", holder, str(run.path)], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"going on in process {other.pid}"), run.held():
            pass
        other.kill()
    with run.held():
        pass
