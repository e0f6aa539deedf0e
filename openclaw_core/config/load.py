"""A profile, the files it extends, the environment and --set become one checked configuration.

Precedence: --set over environment (OPENCLAW__SECTION__KEY) over files (a profile over those it extends) over defaults.
Every value keeps its origin. Everything that is wrong is told at once. Costs an import of pydantic and yaml, no more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ..errors import UsageFindings
from . import checks
from .devices import parse_devices
from .merge import Tree, working_folder
from .problems import sentences
from .schema import Config
from .sources import Layer, environment_layers, misspelt_variables, override_layers, profile_layers
from .yaml_text import shown

DEFAULT = "default"
VISIBLE = "CUDA_VISIBLE_DEVICES"
Finding = tuple[str, str]


@dataclass(frozen=True)
class Resolved:
    """A configuration that holds everything a run needs, and where each value comes from.

    origins maps every leaf key ("loss.k") to "--set", "environment NAME", "profile NAME", "file PATH", "models/NAME.yaml"
    or "default". warnings are (what, remedy) pairs.
    """

    profile: str
    config: Config
    origins: dict[str, str]
    warnings: tuple[Finding, ...] = ()

    def values(self) -> dict[str, Any]:
        """Every leaf key and its value, in the schema's order."""
        return leaves(self.config.model_dump())

    def to_yaml(self) -> str:
        """The whole configuration as a file that load_profile reads on any machine with the same paths."""
        return yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_profile(
    name_or_path: str | Path,
    overrides: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    base: Path | None = None,
    check: bool = True,
) -> Resolved:
    """The configuration of a profile (shipped name, or path of a YAML file) under the environment and --set KEY=VALUE.

    Relative paths start at the file that holds them, those of env and overrides at base (the working folder).
    Raises UsageError where a file is missing or unreadable and UsageFindings with everything wrong inside; with
    check=False the rules between keys (config.checks) are left to the caller.
    """
    env = os.environ if env is None else env
    base = base or working_folder()
    tree = Tree()
    for layer in profile_layers(str(name_or_path), base):
        tree.add(layer)
    for layer in [*environment_layers(env, base), *override_layers(overrides, base, tree.problems)]:
        tree.add(layer)
    warnings = _visible_devices(tree, env, base) + _conflicts(tree) + misspelt_variables(env)
    config = _validated(tree)
    if tree.problems or config is None:
        raise UsageFindings(f"The configuration of profile {name_or_path} can't be used:", tree.problems)
    origins = {path: tree.origins.get(path, DEFAULT) for path in leaves(config.model_dump())}
    if check:
        wrong = checks.check(config)
        if wrong:
            raise UsageFindings(f"The configuration of profile {name_or_path} contradicts itself:", wrong)
    warnings += checks.remarks(config, origins)
    return Resolved(Path(name_or_path).stem, config, origins, tuple(warnings))


def _validated(tree: Tree) -> Config | None:
    try:
        return Config.model_validate(tree.values, strict=True)
    except ValidationError as error:
        tree.problems += sentences(error, tree.origins)
        return None


def leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted path; a section that is null is a leaf."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            flat.update(leaves(value, f"{path}."))
        else:
            flat[path] = value
    return flat


def _visible_devices(tree: Tree, env: Mapping[str, str], base: Path) -> list[Finding]:
    """On one CUDA machine the devices that CUDA shows are the allowed ones, unless the configuration names them."""
    visible = env.get(VISIBLE, "").strip()
    allowed, nodes, device = (tree.get(f"partition.{name}") for name in ("allowed_devices", "nodes", "device"))
    if not visible or nodes not in (None, 1) or device == "cpu":
        return []
    try:
        ids = parse_devices(visible)
        stated = None if allowed is None else parse_devices(allowed)
    except ValueError:
        what = f"{VISIBLE} names devices in a way that holds no plain numbers, so the plan does not read it."
        return [(what, "Set partition.allowed_devices.")] if allowed is None else []
    if stated is None:
        tree.add(Layer(f"environment {VISIBLE}", base, {"partition": {"allowed_devices": ids}}))
    elif stated != ids:
        origin = tree.origins.get("partition.allowed_devices")
        return [
            (
                f"partition.allowed_devices is {','.join(map(str, stated))} ({origin}); {VISIBLE}={visible} loses.",
                "Make them agree.",
            )
        ]
    return []


def _conflicts(tree: Tree) -> list[Finding]:
    """Environment variables are easily forgotten: one that changes a file's value, or loses to --set, is told."""
    found = []
    for path, written in tree.written.items():
        winner = tree.origins.get(path)
        for origin, value in written.items():
            if winner is None or origin == winner or tree.get(path) == value:
                continue
            if origin.startswith("environment "):
                found.append(
                    (
                        f"{path} is {shown(tree.get(path))} ({winner}); {origin} says {shown(value)} and loses.",
                        "Unset the variable.",
                    )
                )
            elif winner.startswith("environment OPENCLAW__") and origin == _last_file(written):
                found.append(
                    (
                        f"{path} is {shown(tree.get(path))} ({winner}) in place of {shown(value)} ({origin}).",
                        "Unset the variable to undo this.",
                    )
                )
    return found


def _last_file(written: dict[str, Any]) -> str | None:
    files = [origin for origin in written if origin.startswith(("profile ", "file ", "models/"))]
    return files[-1] if files else None
