"""Runs the demonstration and keeps its picture: docs/demo.svg (the terminal, by rich's own export) and docs/preference.svg.

python tools/capture_demo.py [--run-folder runs/picture]
"""

from __future__ import annotations

import argparse
import copy
import io
import os
import shutil
from pathlib import Path

from rich.console import Console

import openclaw_core
from openclaw_cli.live import panel
from openclaw_core.config.load import load_profile
from openclaw_core.run import driver
from openclaw_core.run.plan import make_plan
from openclaw_core.run.progress import Progress, SilentWatcher
from openclaw_core.run.report import report_text
from openclaw_core.run.runs import new_run_name

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = 110


class Photographer(SilentWatcher):
    """Keeps a frame while the loop runs and the notes before it."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.frame: Progress | None = None

    def note(self, text: str) -> None:
        self.notes.append(text.replace(str(Path(openclaw_core.__file__).parents[1]) + os.sep, ""))

    def update(self, progress: Progress) -> None:
        if progress.readings and progress.stage in ("collect", "train", "sync"):
            self.frame = copy.deepcopy(progress)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run-folder", type=Path, default=Path("runs") / new_run_name("picture"))
    folder = parser.parse_args().run_folder
    resolved = load_profile("tiny-cpu")
    camera = Photographer()
    report = driver.launch(resolved, make_plan(resolved), run_folder=folder, resume=None, watcher=camera)
    assert camera.frame is not None, "the run made no step"
    camera.frame.run_folder = str(folder)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print("$ openclaw train --profile tiny-cpu", style="bold")
    for note in camera.notes:
        console.print(note, style="dim")
    console.print(panel(camera.frame))
    console.print(report_text(report).replace(str(folder.resolve()), str(folder)), highlight=False)
    console.save_svg(str(DOCS / "demo.svg"), title="openclaw")
    shutil.copyfile(report.folder + "/preference.svg", DOCS / "preference.svg")


if __name__ == "__main__":
    main()
