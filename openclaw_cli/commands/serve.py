"""Serve the student to clients and capture what they say, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openclaw_cli.completion import complete_key, complete_profile
from openclaw_cli.output import active

EPILOG = """\b
Examples:
  openclaw serve --profile tiny-cpu
  openclaw serve --profile tiny-cpu --set proxy.port=30000
      then: curl http://127.0.0.1:30000/v1/chat/completions -H 'Content-Type: application/json'
            -d '{"model": "student", "messages": [{"role": "user", "content": "Repeat: apple"}]}'
  openclaw serve --profile my.yaml --set proxy.host=0.0.0.0 --set proxy.api_key_env=PROXY_KEY
\b
The address is bound at once; requests get 503 with a reason until the engine can answer.
Whoever can chat can train the model later: turns and judgements are kept in the run folder, and
`openclaw train --resume RUN` trains on them and goes on serving. A profile with users (tiny-cpu) then starts those as well.
"""


def serve(
    profile: Annotated[
        str, typer.Option("--profile", "-p", help="Name of a profile, or path of a YAML file.", autocompletion=complete_profile)
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set one value; may be repeated.", autocompletion=complete_key),
    ] = None,
    run_folder: Annotated[
        Path | None, typer.Option("--run-folder", help="Folder of what is captured; default: one below runs/.")
    ] = None,
) -> None:
    """Serve the student to clients and capture what they say, without training."""
    from dataclasses import asdict

    from openclaw_core.config.load import load_profile
    from openclaw_core.run.preflight import preflight

    resolved = load_profile(profile, overrides or [])
    preflight(resolved.config)
    out = active()
    for what, remedy in resolved.warnings:
        out.warn(what, remedy)
    from openclaw_core.run import serve as proxy

    run, stopped = proxy.serve(resolved, run_folder=run_folder, out=out)
    out.data({"run": run.path, **asdict(stopped)}, str(run.path), quiet=str(run.path))
