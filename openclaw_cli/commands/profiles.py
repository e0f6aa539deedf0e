"""Look at profiles: which there are, what one resolves to and why, which keys exist."""

from __future__ import annotations

from typing import Annotated

import typer

from openclaw_cli.completion import complete_key, complete_profile
from openclaw_cli.output import active, scalar_text, table

EPILOG = """\b
Examples:
  openclaw profiles list
  openclaw profiles show tiny-cpu
  openclaw profiles show qwen3-4b-topk --set loss.k=8 --changed
  openclaw profiles diff qwen3-4b-topk qwen3-4b-grpo
  openclaw profiles schema > openclaw.schema.json
"""


def list_() -> None:
    """List the shipped profiles."""
    from openclaw_core.config.load import load_profile
    from openclaw_core.config.sources import PROFILES, profile_names
    from openclaw_core.run.layout import ROLES, idle_roles
    from openclaw_core.run.sentences import mode_of

    rows = []
    for name in profile_names():
        config = load_profile(name, (), {}, check=False).config
        partition, idle = config.partition, idle_roles(config)
        used = sum(getattr(partition, role).devices for role in ROLES if role not in idle)
        rows.append(
            {
                "name": name,
                "mode": mode_of(config),
                "devices": f"{used} {partition.device}",
                "description": config.description,
                "file": str(PROFILES / f"{name}.yaml"),
            }
        )
    shown = table(
        ("name", "objective", "devices", "what for"), [(r["name"], r["mode"], r["devices"], r["description"]) for r in rows]
    )
    active().data({"profiles": rows}, shown, quiet=[row["name"] for row in rows])


def show(
    profile: Annotated[str, typer.Argument(help="Name of a profile, or path of a YAML file.", autocompletion=complete_profile)],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set one value; may be repeated.", autocompletion=complete_key),
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only values that are not defaults.")] = False,
) -> None:
    """Show every value of a profile and where it comes from; --quiet prints a YAML file that can be edited."""
    from openclaw_core.config.load import DEFAULT, load_profile

    resolved = load_profile(profile, overrides or [])
    out = active()
    for what, remedy in resolved.warnings:
        out.warn(what, remedy)
    values = resolved.values()
    keys = [key for key in values if not (changed and resolved.origins[key] == DEFAULT)]
    body = {key: {"value": values[key], "origin": resolved.origins[key]} for key in keys}
    rows = [(key, scalar_text(values[key]), resolved.origins[key]) for key in keys]
    out.data(
        {"profile": resolved.profile, "configuration": body},
        table(("key", "value", "origin"), rows),
        quiet=resolved.to_yaml().rstrip("\n"),
    )


def diff(
    first: Annotated[str, typer.Argument(help="A profile.", autocompletion=complete_profile)],
    second: Annotated[str, typer.Argument(help="Another profile.", autocompletion=complete_profile)],
) -> None:
    """Show the keys in which two profiles differ."""
    from openclaw_core.config.load import load_profile

    names = (first, second)
    left, right = (load_profile(name, (), {}, check=False).values() for name in names)
    keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    body = [{"key": key, "first": left.get(key), "second": right.get(key)} for key in keys]
    rows = [(key, scalar_text(left.get(key)), scalar_text(right.get(key))) for key in keys]
    shown = table(("key", *names), rows) if rows else f"{first} and {second} differ in nothing."
    active().data({"first": first, "second": second, "differences": body}, shown, quiet=keys)


def schema() -> None:
    """Print the JSON schema of a profile, for editors and for checks."""
    from openclaw_cli.output import to_json
    from openclaw_core.config.json_schema import profile_schema

    text = to_json(profile_schema())
    active().data(profile_schema(), text, quiet=text.rstrip("\n"))


SUBCOMMANDS = (list_, show, diff, schema)
