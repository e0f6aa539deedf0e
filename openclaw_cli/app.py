"""Registers the commands. Nothing heavy is imported here: each command imports the core inside its function."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from . import errors, output

COMMANDS = ("train", "serve", "status", "inspect_candidates", "validate", "convert_ckpt", "profiles")
EPILOG = """\b
Examples:
  openclaw train --profile tiny-cpu
  openclaw train --profile qwen3-4b-topk --dry-run
  openclaw status runs/RUN
  openclaw --json profiles list
\b
Environment:
  OPENCLAW__SECTION__KEY=value  a configuration value, e.g. OPENCLAW__LOSS__K=8; flags win over it, it wins over files
  OPENCLAW_DEBUG=1              tracebacks
  NO_COLOR=1                    no colours
"""


class Program(TyperGroup):
    """All commands. Wrong usage found while the arguments are parsed is told as every other error is."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        """Runs the command that args (else the command line) name, and exits; more and settings are Typer's own."""
        given = list(sys.argv[1:] if args is None else args)
        output.use("json" if asks_for_json(given) else "human")
        try:
            code = super().main(args, *more, **settings | {"standalone_mode": False})
        except (Exception, KeyboardInterrupt) as error:
            code = errors.report(error)
        except SystemExit as end:
            # So rich and the parser's own help end where nobody reads them.
            if not isinstance(end.__context__, BrokenPipeError):
                raise
            code = errors.unread()
        sys.exit(code if isinstance(code, int) else 0)


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether --json is among the arguments, also where they can't be parsed."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return "--json" in arguments[:end]


app = typer.Typer(
    cls=Program,
    help="Train a model from live conversations: hybrid GRPO and multi-candidate top-K on-policy distillation.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 120},
)
JSON_HELP = "Print the result as one JSON document."
QUIET_HELP = "Print only the shortest form of the result, and errors."


def version(asked: bool) -> None:
    """Prints the version and ends."""
    if asked:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            typer.echo(f"openclaw-rl {installed('openclaw-rl')}")
        except PackageNotFoundError:
            typer.echo("openclaw-rl (not installed)")
        raise typer.Exit


@app.callback()
def main_callback(
    context: typer.Context,
    json: bool = typer.Option(False, "--json", help=JSON_HELP),
    quiet: bool = typer.Option(False, "--quiet", help=QUIET_HELP),
    version: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Print the version and exit."),
) -> None:
    remember(context, json, quiet)


def group_callback(
    context: typer.Context,
    json: bool = typer.Option(False, "--json", help=JSON_HELP),
    quiet: bool = typer.Option(False, "--quiet", help=QUIET_HELP),
) -> None:
    remember(context, json, quiet)


def remember(context: typer.Context, json: bool, quiet: bool) -> None:
    """Keeps the flags that stood before a command, for the command."""
    flags = context.ensure_object(dict)
    flags["json"] = json or flags.get("json", False)
    flags["quiet"] = quiet or flags.get("quiet", False)


def command(function: Callable[..., Any]) -> Callable[..., None]:
    """function with --json and --quiet added, and its errors told in a sentence; Typer reads the signature made here."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter("context_", keyword, annotation=typer.Context),
        inspect.Parameter("json_", keyword, default=typer.Option(False, "--json", help=JSON_HELP), annotation=bool),
        inspect.Parameter("quiet_", keyword, default=typer.Option(False, "--quiet", help=QUIET_HELP), annotation=bool),
    ]
    own = [entry.replace(kind=keyword) for entry in inspect.signature(function, eval_str=True).parameters.values()]

    @functools.wraps(function)
    def wrapped(*, context_: typer.Context, json_: bool, quiet_: bool, **given: Any) -> None:
        flags = context_.find_root().obj or {}
        try:
            output.use(mode_of(json_ or flags.get("json", False), quiet_ or flags.get("quiet", False)))
            function(**given)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise typer.Exit(errors.report(error)) from None

    wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {entry.name: entry.annotation for entry in [*own, *added]}
    return wrapped


def mode_of(json: bool, quiet: bool) -> output.Mode:
    """The one mode that the two flags ask for."""
    if json and quiet:
        from openclaw_core.errors import UsageError

        raise UsageError("--json and --quiet exclude each other.", "Give one of them.")
    return "json" if json else "quiet" if quiet else "human"


def register() -> None:
    """Adds each command's function, or its whole Typer app where it has sub-commands."""
    for name in COMMANDS:
        module = import_module(f"openclaw_cli.commands.{name}")
        shown, epilog = name.replace("_", "-"), getattr(module, "EPILOG", None)
        if hasattr(module, "SUBCOMMANDS"):
            group = typer.Typer(
                callback=group_callback, help=module.__doc__, epilog=epilog, no_args_is_help=True, rich_markup_mode=None
            )
            for function in module.SUBCOMMANDS:
                group.command(function.__name__.rstrip("_"), epilog=epilog)(command(function))
            app.add_typer(group, name=shown)
        else:
            app.command(shown, epilog=epilog)(command(getattr(module, name)))


register()


def main() -> None:
    """The program: exit code 0 done, 1 findings or failure, 2 wrong usage, 130 interrupted, 141 nobody reads on."""
    for name in ("stdout", "stderr"):
        # Python has none where the shell closed it; what is written there is nobody's.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open as long as the program
    app()
