"""Writes docs/cli.md and docs/config.md from the program itself; --check only says whether they are current.

python tools/make_docs.py [--check]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
WIDTH = "100"
NOTICE = "<!-- Written by tools/make_docs.py; edits go into the program. -->\n"


def cli_page() -> str:
    """docs/cli.md: every command's own help."""
    os.environ.update(COLUMNS=WIDTH, NO_COLOR="1")
    from typer.testing import CliRunner

    from openclaw_cli.app import app

    runner = CliRunner()

    def section(level: int, *command: str) -> str:
        shown = runner.invoke(app, [*command, "--help"], prog_name="openclaw")
        text = "\n".join(line.rstrip() for line in shown.output.strip().splitlines())
        return f"{'#' * level} {' '.join(('openclaw', *command))}\n\n```text\n{text}\n```\n"

    parts = [
        NOTICE,
        "# Commands\n",
        "Data goes to stdout, everything else to stderr. `--json` and `--quiet` may stand before or after the command.",
        "`openclaw-rl` and `python -m openclaw_cli` are the same program, for machines where another one is called `openclaw`.\n",
        "| exit code | means |\n| --- | --- |\n| 0 | done |\n| 1 | findings, or something failed |",
        "| 2 | wrong flags, keys or values, or a path that isn't there or is taken: nothing was started |",
        "| 130 | interrupted: SIGINT, but for a run that had started (below) |",
        "| 141 | whoever read the output closed it, as `head -1` does; nothing is said |\n",
        "A first SIGINT or SIGTERM while `train` trains or `serve` serves stops it in order, with 0; `train --resume` goes on.",
        "While `train` still starts up SIGINT ends it with 130, and so does a second signal at any time.\n",
        "A path given to a command that isn't there, is a file where a folder is meant (or the reverse), or is taken where",
        "something new shall lie, is wrong usage: 2.",
        "What lies there and isn't what it should be, and what can't be read or written, is a finding or a failure: 1.",
        "An error is one sentence on stderr. With `--json` it is also the one document on stdout, with the keys `error`,",
        "`remedy` and, where there are several, `findings`; a command that finds something prints its result as ever.\n",
        "`openclaw --install-completion` completes commands, profiles, run folders and configuration keys in the shell.\n",
        section(2),
    ]
    parts += [section(2, str(entry.name)) for entry in app.registered_commands]
    for group in app.registered_groups:
        parts.append(section(2, str(group.name)))
        inner = group.typer_instance.registered_commands if group.typer_instance else []
        parts += [section(3, str(group.name), str(entry.name)) for entry in inner]
    return "\n".join(parts)


def config_page() -> str:
    """docs/config.md: precedence, then every key with its type, default and meaning."""
    from openclaw_core.config.json_schema import profile_schema
    from openclaw_core.config.keys import all_keys
    from openclaw_core.run import memory

    schema = profile_schema()
    sections: dict[str, list[str]] = {"": []}
    first: dict[object, str] = {}
    repeated: dict[str, str] = {}
    titles: dict[str, str] = {"": "A profile's own keys."}
    for path, key in all_keys().items():
        parent, _, name = path.rpartition(".")
        if key.section is not None:
            if first.setdefault(key.section, path) != path:
                repeated[path] = first[key.section]
            sections[path] = []
            titles[path] = " ".join((key.field.description or key.section.__doc__ or "").split())
            continue
        default = "required" if key.field.is_required() else f"`{_text(key.field.get_default(call_default_factory=True))}`"
        sections[parent].append(f"| `{name}` | {_kind(schema, path)} | {default} | {key.field.description or ''} |")
    sections[""].insert(0, "| `extends` | text or list | none | Profiles whose values come first, by name or path. |")
    parts = [NOTICE, INTRODUCTION]
    for path, rows in sections.items():
        if path in repeated and path.rpartition(".")[0] not in repeated:
            parts.append(f"## {path}\n\n{titles[path]} Keys as in `{repeated[path]}`.\n")
        elif rows and path not in repeated:
            parts.append(
                f"## {path or 'top level'}\n\n{titles[path]}\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |"
            )
            parts.append("\n".join(rows) + "\n")
    parts.append(f"## Memory estimates of the plan\n\n```text\n{(memory.__doc__ or '').strip()}\n```\n")
    return "\n".join(parts)


INTRODUCTION = """# Configuration

A run is told everything by one configuration. `openclaw profiles list` shows the shipped profiles,
`openclaw profiles show NAME` every value of one and where it comes from, `openclaw train --profile NAME --dry-run`
what it makes of a run.

A value comes from, first wins:

1. `--set KEY=VALUE` on the command line,
2. the environment: `OPENCLAW__LOSS__K=8` is `loss.k=8`; a variable that changes a file's value, or loses to `--set`, is
   told as a warning,
3. the profile, then the profiles it `extends`,
4. the default below.

Keys that don't exist are refused at any depth, with the nearest one; keys without effect in the chosen mode are told.
Relative paths start at the file that holds them, or at the working folder for flags and variables;
`package:tiny-qwen3` is the model that ships with the program. Nothing is filled in from the environment, and secrets
are never values: keys that end in `_env` name a variable that holds one. On one CUDA machine `CUDA_VISIBLE_DEVICES`
gives `partition.allowed_devices` unless it is set.
"""


def _kind(schema: dict[str, object], path: str) -> str:
    """The type of a key in words, with its bounds and choices, from the JSON schema."""
    node = schema
    for name in path.split("."):
        node = _resolve(schema, node)["properties"][name]  # type: ignore[index]
    options = [_one(_resolve(schema, option)) for option in node.get("anyOf", [node])]  # type: ignore[attr-defined]
    return " or ".join(dict.fromkeys(option for option in options if option))


def _resolve(schema: dict[str, object], node: dict[str, object]) -> dict[str, object]:
    """node, through a reference, or through the one reference of a nullable section."""
    for option in node.get("anyOf", [node]):  # type: ignore[attr-defined]
        if "$ref" in option:
            return schema["$defs"][option["$ref"].rsplit("/", 1)[1]]  # type: ignore[index]
    return node


def _one(node: dict[str, object]) -> str:
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])  # type: ignore[attr-defined]
    names = {
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "string": "text",
        "array": "list",
        "null": "null",
    }
    name = {"path": "path", "environment-variable": "name of a variable"}.get(
        str(node.get("format")), names.get(str(node.get("type")), "")
    )
    signs = {"minimum": ">= {}", "exclusiveMinimum": "> {}", "maximum": "<= {}", "exclusiveMaximum": "< {}"}
    bounds = ", ".join(sign.format(f"{node[key]:g}") for key, sign in signs.items() if key in node)
    return f"{name} {bounds}".strip()


def _text(value: object) -> str:
    from openclaw_cli.output import scalar_text

    return scalar_text(value) if value != "" else '""'


def main() -> int:
    """Writes the pages, or with --check exits 1 where one isn't current."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for name, page in (("cli.md", cli_page()), ("config.md", config_page())):
        path = ROOT / "docs" / name
        if not path.exists() or path.read_text("utf-8") != page:
            stale.append(name)
            if not check:
                path.write_text(page, "utf-8")
    for name in stale:
        print(f"docs/{name} {'is not current: run python tools/make_docs.py' if check else 'written'}", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
