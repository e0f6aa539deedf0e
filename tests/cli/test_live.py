from __future__ import annotations

import io

from rich.console import Console

from openclaw_cli.live import LineWatcher, panel
from openclaw_cli.output import Output
from openclaw_core.run.progress import Progress


def test_a_step_line_says_over_how_many_samples_the_opd_term_is_a_mean() -> None:
    stream = io.StringIO()
    progress = Progress("runs/demo", 4, step=2, metrics={"loss/total": 0.5, "loss/opd": 0.452, "batch/reward": None})
    progress.opd_samples = (13, 16)
    watcher = LineWatcher(Console(file=stream, width=160), Output())
    watcher.update(progress)
    watcher.update(progress)
    assert stream.getvalue() == "step 2/4  loss/total +0.5000   loss/opd +0.4520 (13/16)\n"


def test_a_resumed_run_stands_at_a_step():
    stream = io.StringIO()
    watcher = LineWatcher(Console(file=stream, width=160), Output())
    watcher.update(Progress("runs/demo", 40, step=29, after_step=29))
    assert stream.getvalue() == "step 29/40  going on after step 29\n"


def test_the_panel_holds_the_proxys_address():
    stream = io.StringIO()
    Console(file=stream, width=100).print(panel(Progress("runs/demo", 4, proxy="http://127.0.0.1:4711/v1")))
    assert "http://127.0.0.1:4711/v1" in stream.getvalue()
