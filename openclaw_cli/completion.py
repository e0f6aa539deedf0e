"""What the shell offers after a flag: profile names and run folders. Light, and never an error."""

from __future__ import annotations

from pathlib import Path


def complete_profile(incomplete: str) -> list[str]:
    """Shipped profiles and YAML files of the working folder."""
    from openclaw_core.config.sources import profile_names

    files = [str(path) for pattern in ("*.yaml", "*.yml") for path in sorted(Path(incomplete or ".").parent.glob(pattern))]
    return [name for name in [*profile_names(), *files] if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Run folders below runs/, or below the folder typed so far, newest first."""
    typed = Path(incomplete)
    roots = {Path("runs"), typed, typed.parent}
    found = [path.parent for root in roots if root.is_dir() for path in root.glob("*/run.json")]
    newest = sorted(set(found), key=lambda path: -(path / "run.json").stat().st_mtime)
    return [str(path) for path in newest if str(path).startswith(incomplete) or path.name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """KEY= for --set, and the values of a key that has only a few."""
    from typing import Literal, get_args, get_origin

    from openclaw_core.config.keys import all_keys

    path, equals, _ = incomplete.partition("=")
    keys = all_keys()
    if not equals:
        return [f"{name}=" for name, key in keys.items() if key.section is None and name.startswith(path)]
    annotation = keys[path].field.annotation if path in keys else None
    values = get_args(annotation) if get_origin(annotation) is Literal else ("true", "false") if annotation is bool else ()
    return [f"{path}={value}" for value in values if f"{path}={value}".startswith(incomplete)]
