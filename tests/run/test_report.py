from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from openclaw_core.rollout.store import Store
from openclaw_core.run.report import Reading, build_report, held_from, report_markdown, report_text, write_report
from openclaw_core.run.runs import create_run
from openclaw_core.track.sinks import JsonlSink


@pytest.fixture
def run(tmp_path):
    run = create_run(tmp_path, "demo", steps=40, facts={"target_rate": 0.8, "preference": "capitals", "objective": "Hybrid."})
    sink = JsonlSink(run.metrics)
    readings = {0: (0.0, None, 0), 10: (0.85, 0.9, 200), 20: (0.7, 0.92, 390), 30: (0.9, 0.95, 580), 40: (0.97, 0.96, 760)}
    for step in range(41):
        line = {"seconds/collect": 1.0, "seconds/train": 0.5}
        if step in readings:
            rate, solved, sessions = readings[step]
            line |= {"eval/preference_rate": rate, "eval/solved_rate": solved, "eval/tasks": 100, "funnel/sessions": sessions}
        sink.write(step, line)
    store = Store(run.store)
    store.count("received", 410)
    store.count("main", 400)
    store.close()
    run.update(state="finished", step=40)
    return run


def test_the_report_says_what_the_run_came_to(run):
    report = build_report(run)
    assert (report.before.preference_rate, report.after.preference_rate, report.after.solved_rate) == (0.0, 0.97, 0.96)
    assert (report.held.step, report.held.sessions) == (30, 580)
    assert report.seconds == {"collect": 41.0, "train": 20.5}
    assert report.wall_seconds == 61.5
    assert (report.funnel["received"], report.funnel["main"], report.funnel["trained"]) == (410, 400, 0)


def test_held_means_from_then_on():
    def readings(*rates):
        return tuple(Reading(10 * number, None, rate, None, None) for number, rate in enumerate(rates))

    assert held_from(readings(0, 0.9, 0.7, 0.8, 0.9), 0.8).step == 30
    assert held_from(readings(0, 0.9, 0.79), 0.8) is None
    assert held_from(readings(0.9, 0.9), 0.8).step == 0
    assert held_from((), 0.8) is None


def test_the_files_agree_with_the_report(run):
    report = build_report(run)
    write_report(run, report)
    record = json.loads(run.report.read_text())
    assert record["after"]["preference_rate"] == 0.97
    assert record["held"]["step"] == 30
    assert record["seconds"] == {"collect": 41.0, "train": 20.5}
    ElementTree.fromstring((run.path / "preference.svg").read_text())
    page = (run.path / "report.md").read_text()
    assert "| 30 | 580 | 0.900 | 0.950 | 100 |" in page
    assert "(preference.svg)" in page
    text = report_text(report)
    assert "97.0% of 100 replies (step 40)" in text
    assert "step 30 after 580 sessions" in text
    assert "received 410, main 400" in text
    assert f"openclaw inspect-candidates {run.path}" in text


def test_a_run_without_readings_has_a_report_too(tmp_path):
    run = create_run(tmp_path, "bare", steps=5)
    run.metrics.write_text("{broken\n")
    run.store.write_bytes(b"no store" * 100)
    report = build_report(run)
    write_report(run, report)
    assert (report.before, report.after, report.held) == (None, None, None)
    assert "no reading" in report_text(report)
    assert "metrics.jsonl, line 1" in report_markdown(report)
    assert "is not a store" in report_markdown(report)


def test_a_run_that_stopped_early_names_what_goes_on_with_it(run):
    run.config.write_text("{}")
    run.update(state="stopped", step=30, steps=40)
    command = f"openclaw train --resume {run.path}"
    assert build_report(run).go_on == command
    assert f"go on with {command}" in " ".join(report_text(build_report(run)).split())
    run.update(state="finished")
    assert "--resume" not in report_text(build_report(run))


def test_a_run_without_a_step_has_none_to_look_into(run):
    run.update(step=0)
    assert build_report(run).commands == (f"openclaw status {run.path}",)


def test_preference_names_cannot_break_the_page(tmp_path):
    run = create_run(tmp_path, "bare", facts={"preference": "a | b\nc <script>", "target_rate": 0.8})
    write_report(run, build_report(run))
    assert "a \\| b c" in (run.path / "report.md").read_text()
    ElementTree.fromstring((run.path / "preference.svg").read_text())
