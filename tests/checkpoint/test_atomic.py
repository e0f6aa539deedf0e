"""A target appears whole or not at all, takes nothing else with it, and what was there stays until then."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint import atomic, jobs, sides
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.manifest import carry, read_manifest
from openclaw_core.errors import Findings, UsageError, UserError


def run(source: Path, target: Path, *, overwrite: bool = False, **options):
    return convert(plan_conversion(source, target, **options), overwrite=overwrite)


def test_an_existing_target_is_refused_and_kept(make_hf, tmp_path):
    source = make_hf()
    run(source, tmp_path / "td")
    before = (tmp_path / "td" / "openclaw.json").read_text()
    with pytest.raises(UserError, match="exists"):
        run(source, tmp_path / "td", tp=4)
    assert (tmp_path / "td" / "openclaw.json").read_text() == before
    run(source, tmp_path / "td", tp=4, overwrite=True)
    assert read_manifest(tmp_path / "td").vocabulary["padded"] == 512
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "td"]


@pytest.mark.parametrize("name", [".td.partial", ".td.old"])
@pytest.mark.parametrize("link", [True, False])
def test_what_lies_where_leftovers_would_is_kept(make_hf, tmp_path, name, link):
    source, place = make_hf(), tmp_path / name
    if link:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "diary.txt").write_text("dear")
        place.symlink_to(tmp_path / "home")
    else:
        place.write_text("dear")
    with pytest.raises(UserError, match=r"is in the way: no folder that a conversion left\. Move it away"):
        run(source, tmp_path / "td")
    assert (place / "diary.txt" if link else place).read_text() == "dear"
    assert not (tmp_path / "td").exists()


def test_a_folder_of_that_name_which_holds_no_conversion_is_kept(make_hf, tmp_path):
    source, place = make_hf(), tmp_path / ".td.old"
    place.mkdir()
    (place / "diary.txt").write_text("dear")
    with pytest.raises(UserError, match=r"td\.old is in the way: no folder that a conversion left\. Move it away"):
        run(source, tmp_path / "td", overwrite=True)
    assert (place / "diary.txt").read_text() == "dear"


def test_overwrite_never_removes_what_no_conversion_made(make_hf, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("dear")
    source, original, file = make_hf(), make_hf("original"), tmp_path / "home" / "diary.txt"
    run(source, tmp_path / "td")
    carry(tmp_path / "td", tmp_path / "step-10")
    shutil.copytree(tmp_path / "td", tmp_path / "torn")
    (tmp_path / "torn" / "openclaw.json").write_text('{"complete": tr')
    shutil.copytree(tmp_path / "td" / "release", tmp_path / "foreign")
    reasons = dict.fromkeys((original, file, file.parent, tmp_path / "foreign"), "there is no openclaw.json")
    reasons |= dict.fromkeys((tmp_path / "step-10", tmp_path / "torn"), "its openclaw.json names none")
    for place, why in reasons.items():
        before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
        to = tmp_path / "td" if place == original else source
        with pytest.raises(UserError, match=rf"{place} wasn't made by a conversion \({why}\).* or remove it yourself"):
            run(to, place, overwrite=True)
        with pytest.raises(UserError, match=rf"{place} exists\. Choose another place, or remove it yourself"):
            run(to, place)
        after = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
        assert [one for one in after if one[0].is_file()] == [one for one in before if one[0].is_file()]


def test_overwrite_never_removes_other_folders_nor_the_source_by_another_name(make_hf, tmp_path):
    source = make_hf()
    run(source, tmp_path / "td")
    (tmp_path / "td" / "thesis").mkdir()
    with pytest.raises(UserError, match=r"folders that no checkpoint has \(thesis\)"):
        run(source, tmp_path / "td", overwrite=True)
    (tmp_path / "config-only").mkdir()
    (tmp_path / "config-only" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="wasn't made by a conversion"):
        run(source, tmp_path / "config-only", overwrite=True)
    (tmp_path / "link").symlink_to(source.parent)
    with pytest.raises(UsageError, match="lie in each other"):
        run(source, tmp_path / "link" / source.name, overwrite=True)
    (tmp_path / "alias").symlink_to(tmp_path / "td")
    with pytest.raises(UsageError, match="is a link"):
        run(source, tmp_path / "alias", overwrite=True)


def test_a_tensor_that_differs_after_writing_fails_and_leaves_the_old_one(make_hf, tmp_path, monkeypatch):
    source = make_hf()
    run(source, tmp_path / "td")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "td").rglob("*"))
    honest = sides.write_file

    def flipping(path, *rest):
        places = honest(path, *rest)
        place = next(p for p in places if p.name == "decoder.layers.mlp.linear_fc2.weight" and p.offsets[0] == 1)
        with path.open("r+b") as file:
            file.seek(place.start + place.length // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        return places

    monkeypatch.setattr(sides, "write_file", flipping)
    with pytest.raises(Findings, match=r"1 of 35 tensors differ(.|\n)*model\.layers\.1\.mlp\.down_proj\.weight"):
        run(source, tmp_path / "td", overwrite=True)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "td").rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "td"]


@pytest.mark.parametrize("direction", ["import", "export"])
def test_a_source_that_changes_meanwhile_is_told(make_hf, tmp_path, direction):
    source = make_hf()
    if direction == "export":
        run(source, tmp_path / "td")
        source = tmp_path / "td"
    written = next(path for path in source.rglob("*") if path.suffix in (".safetensors", ".distcp"))

    def change(stage, done, total):
        os.utime(written, (1, 1))

    with pytest.raises(UserError, match=r"changed while it was converted; .*made wasn't written"):
        convert(plan_conversion(source, tmp_path / "made"), progress=change)
    assert not list(tmp_path.glob("*made*"))


def test_a_killed_conversion_leaves_no_target_and_the_next_one_starts_anew(make_hf, tmp_path):
    source = make_hf()
    program = (
        "import sys, time\nfrom openclaw_core.checkpoint.convert import convert, plan_conversion\n"
        f"plan = plan_conversion({str(source)!r}, {str(tmp_path / 'td')!r})\n"
        "def wait(stage, done, total):\n    print(stage, flush=True)\n    time.sleep(60)\n"
        "convert(plan, progress=wait)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline().strip() == "write"
    with pytest.raises(UserError, match="being written by another conversion"):
        run(source, tmp_path / "td")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "td").exists()
    with pytest.raises(UserError, match="interrupted conversion"):
        plan_conversion(tmp_path / ".td.partial", tmp_path / "x")
    run(source, tmp_path / "td")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "td"]


def test_what_was_replaced_is_told_where_the_run_was_killed_before_it_could_remove_it(make_hf, tmp_path):
    source, target = make_hf(), tmp_path / "td"
    run(source, target)
    program = (
        "import os, shutil, signal\nfrom openclaw_core.checkpoint.convert import convert, plan_conversion\n"
        "shutil.rmtree = lambda folder: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"convert(plan_conversion({str(source)!r}, {str(target)!r}, tp=4), overwrite=True)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    assert read_manifest(target).vocabulary["padded"] == 512
    done = CliRunner().invoke(app, ["convert-ckpt", str(target), "--verify-only"])
    assert (done.exit_code, done.stderr.startswith(f"warning: {tmp_path}/.td.old is what {target} replaced")) == (0, True)
    done = CliRunner().invoke(app, ["convert-ckpt", str(source), str(target)])
    assert (done.exit_code, f"{tmp_path}/.td.old is what it replaced" in done.stderr) == (2, True)
    run(source, target, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "td"]
    assert not list(target.glob(".*"))


def test_a_conversion_of_that_name_which_no_run_left_is_neither_told_nor_removed(make_hf, tmp_path):
    source = make_hf()
    run(source, tmp_path / "td")
    shutil.copytree(tmp_path / "td", tmp_path / ".td.old")
    done = CliRunner().invoke(app, ["convert-ckpt", str(tmp_path / "td"), "--verify-only"])
    assert (done.exit_code, done.stderr) == (0, "")
    with pytest.raises(UsageError, match=r"td exists\. Choose another place, or pass --overwrite\.$"):
        run(source, tmp_path / "td")
    assert (tmp_path / ".td.old" / "openclaw.json").is_file()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 40 MB; None where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_seen_before_writing(make_hf, tmp_path, small_disk, monkeypatch):
    if small_disk is None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=40 * 2**20))
    source, target = make_hf(), (small_disk or tmp_path) / "deep" / "td"
    said = f"{target.parent} has 0.0 GB free, the result takes 0.1 GB. Make room or choose another disk."
    for dry in (["--dry-run"], []):
        done = CliRunner().invoke(app, ["convert-ckpt", str(source), str(target), *dry])
        assert (done.exit_code, bool(done.stdout)) == (1, bool(dry))
        assert said in done.stderr
        assert not target.exists()
        assert not list(target.parent.glob(".*"))


def test_a_disk_that_fills_up_on_the_way_leaves_what_can_be_gone_on_from(make_hf, read_hf, tmp_path, small_disk, monkeypatch):
    """Another process takes the room that was free when the conversion began: here nothing looks, and the disk is small."""
    if small_disk is None:
        pytest.skip("no small disk can be mounted here")
    source = make_hf(vocab_size=80_000, hidden_size=64, num_hidden_layers=12, intermediate_size=4096)
    monkeypatch.setattr(atomic, "check_room", lambda target, needed: None)
    monkeypatch.setattr(jobs.split_jobs, "__defaults__", (4 * 2**20,))
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 20 * 2**20)
    done = CliRunner().invoke(app, ["convert-ckpt", str(source), str(small_disk / "td")])
    assert done.exit_code == 1
    remedy = "Make room and convert again; the same command goes on where it was."
    assert done.stderr == f"error: {small_disk} has no room left; td wasn't written. {remedy}\n"
    assert not (small_disk / "td").exists()
    filler.unlink()
    assert run(source, small_disk / "td").kept
    run(small_disk / "td", tmp_path / "back")
    a, b = read_hf(source), read_hf(tmp_path / "back")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
