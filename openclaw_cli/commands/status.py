"""What a run is doing: how far turns came, what was learned, what it waits for, which of its processes live."""

from __future__ import annotations

from typing import Annotated

import typer

from openclaw_cli.completion import complete_run
from openclaw_cli.output import active

EPILOG = """\b
Examples:
  openclaw status runs/RUN
  openclaw status latest
  openclaw status latest --stall-after 60
      call the run stalled when no step ended for a minute
  openclaw --json status runs/RUN | jq '.store.funnel, .stall'
  openclaw --quiet status runs/RUN
      one line: state, step, steps
\b
Exit code: 1 when the run has failed, is stalled, or ended without a word; 0 otherwise.
"""


def status(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Run folder, name below runs/, or 'latest': the newest that trains.", autocompletion=complete_run
        ),
    ] = "latest",
    stall_after: Annotated[
        float, typer.Option("--stall-after", min=1, metavar="SECONDS", help="Silence from which a run counts as stalled.")
    ] = 300.0,
) -> None:
    """What a run is doing: how far turns came, what was learned, what it waits for, which of its processes live."""
    from dataclasses import asdict

    from openclaw_cli.status_text import status_text
    from openclaw_core.run.runs import open_run
    from openclaw_core.run.status import read_status

    read = read_status(open_run(run), stall_after_s=stall_after)
    body = {**asdict(read), "abandoned": read.abandoned}
    active().data(body, lambda console: status_text(read, console), quiet=f"{read.state} {read.step} {read.steps}")
    if read.state == "failed" or read.stall is not None or read.abandoned:
        raise typer.Exit(1)
