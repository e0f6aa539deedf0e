from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from benchmarks import page, personalisation, results
from benchmarks.claims import Results, leads, requirements
from benchmarks.driving import ROOT, Driver, folder_of, result_of
from benchmarks.experiments import DEFAULTS, GRPO, HYBRID, PREFERENCES, SEEDS, STEPS, TABLES, run_of, runs_of
from benchmarks.results import Record, median, read_run
from openclaw_core.config.load import load_profile
from openclaw_core.run.report import build_report, write_report
from openclaw_core.run.runs import create_run
from openclaw_core.track.sinks import JsonlSink

RUN = run_of(HYBRID, 1, 60)
RATES = {0: 0.0, 20: 0.4, 40: 0.86, 60: 0.95}


def finished(run, rates=RATES, **changes):
    readings = tuple((step, step * 3, rate, 0.97 if rate else 0.0, 100) for step, rate in rates.items())
    held = next(((step, step * 3, step * 1.5) for step, rate in rates.items() if rate >= 0.8), None)
    record = Record(run.settings, "finished", readings=readings, held=held, seconds={"start": 9.0, "train": 50.0, "eval": 7.0})
    return replace(record, wall_seconds=70.0, cpu_seconds=99.0, load=1.5, machine="a machine", program="abc123", **changes)


def all_finished(rates=RATES):
    return Results(60, {run: finished(run, rates) for run in runs_of(TABLES, SEEDS, 60)})


def make_folder(path, state="finished", reason=""):
    run = create_run(path.parent, path.name, steps=60, facts={"target_rate": 0.8, "preference": "capitals"})
    sink = JsonlSink(run.metrics)
    for step in range(0, 61, 20):
        body = {"seconds/train": 2.0, "seconds/eval": 5.0, "funnel/sessions": step * 3} if step else {"seconds/start": 8.0}
        sink.write(step, {**body, "eval/preference_rate": RATES[step], "eval/solved_rate": 0.9, "eval/tasks": 100})
    sink.close()
    run.update(state=state, reason=reason, step=60)
    write_report(run, build_report(run))
    return path


def test_page_and_plot_are_those_of_the_kept_results():
    folder = ROOT / "benchmarks"
    kept = results.load(folder / "personalisation.json")
    found = Results(STEPS, kept)
    assert (folder / "personalisation.md").read_text() == page.page(found)
    assert (folder / page.PLOT).read_text() == page.plot(found)
    assert set(kept) <= set(runs_of(TABLES, SEEDS, STEPS))


def test_every_run_is_one_that_the_program_accepts_and_is_made_once():
    base = load_profile("tiny-cpu", []).config
    for key, value in DEFAULTS.items():
        section, name = key.split(".")
        assert getattr(getattr(base, section), name) == value
    runs = runs_of(TABLES, SEEDS, STEPS)
    assert max(Counter(runs).values()) == 1
    configs = [load_profile("tiny-cpu", [f"{key}={value}" for key, value in run.settings]).config for run in runs]
    assert len({config.model_dump_json() for config in configs}) == len(runs)
    rows = {row.settings for table in TABLES for row in table.rows}
    assert len(runs) == len(rows) * len(SEEDS) < sum(len(table.rows) for table in TABLES) * len(SEEDS)


def test_a_run_folder_is_read(tmp_path):
    record = read_run(RUN, make_folder(tmp_path / "r"))
    assert record.finished
    assert [(reading[0], reading[2]) for reading in record.readings] == list(RATES.items())
    assert record.held == (40, 120, 4.0)
    assert (record.first, record.rate(20), record.last, record.solved) == (0.0, 0.4, 0.95, 0.9)
    assert record.training_seconds == 6.0
    assert record.passed(0.8) == 40


def test_a_run_that_stopped_or_left_nothing_is_not_finished(tmp_path):
    assert read_run(RUN, make_folder(tmp_path / "r", "failed", "the engine ended")).error == "the engine ended"
    folder = make_folder(tmp_path / "s")
    (folder / "report.json").write_text('{"state": "finished"}')
    assert "can't be read" in read_run(RUN, folder).error
    (folder / "report.json").unlink()
    record = read_run(RUN, folder)
    assert not record.finished
    assert record.rate(60) == 0.95


def test_results_come_back_as_they_were_written(tmp_path):
    records = {RUN: finished(RUN), run_of(GRPO, 0, 60): Record(run_of(GRPO, 0, 60).settings, "failed", "x", ("y",))}
    path = tmp_path / "results.json"
    results.store(path, records)
    assert results.load(path) == records
    results.store(tmp_path / "again.json", dict(reversed(results.load(path).items())))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    path.write_text('{"runs": [{}]}')
    assert personalisation.main(["--report-only", "--out", str(tmp_path), "--work", str(tmp_path / "w")]) == 0
    path.rename(tmp_path / "personalisation.json")
    assert personalisation.main(["--report-only", "--out", str(tmp_path), "--work", str(tmp_path / "w")]) == 1


def test_a_level_that_is_not_reached_counts_as_late():
    assert median([30, None, 40]) == 40
    assert median([None, 30, None]) is None
    assert median([]) is None


def test_cells_show_every_seed_and_what_is_missing():
    found = all_finished()
    found.records[run_of(HYBRID, 0, 60)] = finished(run_of(HYBRID, 0, 60), {0: 0.0, 60: 0.7})
    del found.records[run_of(HYBRID, 2, 60)]
    row = next(line for line in page.page(found).splitlines() if line.startswith("| hybrid | – ("))
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells[4] == "82 (70, 95, –)"
    assert cells[6] == "– (–, 40, –)"


def test_failures_are_named_and_not_counted():
    found = all_finished()
    run = run_of(HYBRID, 1, 60)
    found.records[run] = Record(run.settings, "failed", "It took longer than 5 s.", ("The engine ended.",))
    text = page.page(found)
    tail = text[text.index("## Runs that failed") :]
    assert f"- not finished: `{run.command()}`: It took longer than 5 s." in tail
    assert "The engine ended." in tail
    assert "95 (95, –, 95)" in text
    assert requirements(found)[0].holds is None


def test_verdicts_follow_the_rates():
    found = all_finished()
    assert [verdict.holds for verdict in requirements(found)] == [True, True, True, True, False, False, False]
    for row in TABLES[1].rows[2:]:
        for seed in SEEDS:
            found.records[run_of(row, seed, 60)] = finished(run_of(row, seed, 60), {0: 0.0, 20: 0.0, 40: 0.05, 60: 0.09})
    assert all(verdict.holds for verdict in requirements(found))
    lines = run_of(PREFERENCES.rows[2], 2, 60)
    found.records[lines] = finished(lines, {0: 0.01, 60: 0.79})
    assert [verdict.holds for verdict in requirements(found)][:4] == [False, False, True, None]
    assert requirements(Results(60, {}))[0].holds is None
    assert {verdict.holds for verdict in leads(Results(60, {}))} == {None}


def test_the_plot_has_the_medians():
    svg = page.plot(all_finished())
    ElementTree.fromstring(svg)
    assert svg.count("<circle") == 4 * len(RATES)
    assert "hybrid: 0.86 at 40" in svg


FAKE = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--run-folder") + 1])
folder.mkdir()
settings = dict(part.split("=") for part in sys.argv if "=" in part)
seed = int(settings["train.seed"])
if seed == 1:
    print(json.dumps({"error": "No room."}))
    sys.exit(1)
if seed == 2:
    time.sleep(60)
(folder / "dumps").mkdir()
(folder / "metrics.jsonl").write_text(json.dumps({"step": 60, "eval/preference_rate": 0.9}) + "\\n")
held = {"step": 60, "sessions": 7}
report = {"state": "finished", "reason": "", "held": held, "seconds": {"train": 1.0}, "wall_seconds": 1.0}
(folder / "report.json").write_text(json.dumps(report))
"""


@pytest.fixture
def work(tmp_path):
    """A work folder with a program that stands in for the product, so that driving alone is tested."""
    package = tmp_path / "work" / "program" / "openclaw_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(FAKE)
    (tmp_path / "work" / "program.txt").write_text("fake\n")
    return tmp_path / "work"


def test_runs_are_made_once_and_failures_again(work, tmp_path, capsys):
    out = tmp_path / "out"
    flags = ["--work", str(work), "--out", str(out), "--only", "p", "--seeds", "0,1"]
    assert personalisation.main(flags) == 1
    failed = run_of(PREFERENCES.rows[1], 1, STEPS)
    assert result_of(work, failed).error == "It ended with exit code 1. No room."
    done = run_of(PREFERENCES.rows[1], 0, STEPS)
    record = result_of(work, done)
    assert (record.program, record.held) == ("fake", (60, 7, 0.0))
    assert not (folder_of(work, done) / "dumps").exists()
    assert (folder_of(work, done) / "output.txt").exists()
    begun = (folder_of(work, done) / "metrics.jsonl").stat().st_mtime_ns
    text = (work / "program" / "openclaw_cli" / "__main__.py").read_text().replace("seed == 1", "seed == 5")
    (work / "program" / "openclaw_cli" / "__main__.py").write_text(text)
    assert personalisation.main(flags) == 0
    assert "6 runs, 3 of them done before" in capsys.readouterr().out
    assert (folder_of(work, done) / "metrics.jsonl").stat().st_mtime_ns == begun
    assert result_of(work, failed).earlier == ("It ended with exit code 1. No room.",)
    kept = json.loads((out / "personalisation.json").read_text())["runs"]
    assert len(kept) == 6
    before = (out / "personalisation.md").read_bytes()
    assert personalisation.main(["--report-only", "--work", str(tmp_path / "none"), "--out", str(out)]) == 0
    assert (out / "personalisation.md").read_bytes() == before


def test_a_run_that_takes_too_long_is_ended(work):
    begin = time.monotonic()
    record = Driver(work, timeout_s=1.5, jobs=1, keep=False).run(run_of(HYBRID, 2, STEPS))
    assert time.monotonic() - begin < 30
    assert record.error.startswith("It took longer than 2 s.")


def test_stopping_leaves_no_result(work):
    driver = Driver(work, timeout_s=60, jobs=1, keep=False)
    driver.stop()
    assert driver.run(run_of(HYBRID, 0, STEPS)) is None
    assert result_of(work, run_of(HYBRID, 0, STEPS)) is None


@pytest.mark.parametrize("flags", [["--only", "p,z"], ["--only", ","]])
def test_unknown_tables_are_refused(flags, tmp_path, capsys):
    assert personalisation.main([*flags, "--work", str(tmp_path)]) == 2
    assert "--only" in capsys.readouterr().err
