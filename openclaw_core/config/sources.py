"""Where configuration comes from: shipped profiles, files, model facts, the environment and --set."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import expanded
from . import yaml_text
from .keys import all_keys

ENV_PREFIX = "OPENCLAW__"
FILE_KEYS = ("extends",)
PACKAGE_PREFIX = "package:"
ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "profiles"
ASSETS = Path(__file__).resolve().parents[1] / "assets"


@dataclass(frozen=True)
class Layer:
    """Values from one place: origin says which, base is the folder that relative paths start from."""

    origin: str
    base: Path
    data: dict[str, Any]
    raw: bool = False


def profile_names() -> list[str]:
    """Names of the shipped profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def model_names() -> list[str]:
    """Names of the shipped model facts."""
    return sorted(path.stem for path in (PROFILES / "models").glob("*.yaml"))


def package_names() -> list[str]:
    """Names of the models that ship with the program."""
    return sorted(path.parent.name for path in ASSETS.glob("*/config.json"))


def profile_path(name: str, base: Path) -> Path:
    """The file of a profile: a shipped one by name, any other by its path (from base where it is relative)."""
    if name in profile_names():
        return PROFILES / f"{name}.yaml"
    path = resolved(base / expanded(name))
    if path.is_file():
        return path
    if not name.strip():
        raise UsageError("The name of the profile is empty.", f"There are: {', '.join(profile_names())}.")
    if path.is_dir():
        raise UsageError(
            f"The profile {name} is a folder.", "Give the path of a YAML file, or a name that `openclaw profiles list` shows."
        )
    if "/" in name or name.endswith((".yaml", ".yml")):
        raise UsageError(
            f"There is no profile file {path}.", "Give the path of a YAML file, or a name that `openclaw profiles list` shows."
        )
    near = difflib.get_close_matches(name, profile_names(), n=1)
    meant = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(profile_names())}."
    raise UsageError(f"There is no profile {name!r}.", f"{meant} A profile of your own is given by the path of its YAML file.")


def profile_layers(name: str, base: Path, above: tuple[Path, ...] = ()) -> list[Layer]:
    """The layers of a profile, those it extends first; raises UsageError for a file that can't be read or a cycle."""
    path = profile_path(name, base)
    if path in above:
        chain = " -> ".join(entry.name for entry in (*above, path))
        raise UsageError(f"The profiles extend each other in a circle: {chain}.", "Remove one of the `extends`.")
    data = read_mapping(path)
    parents = data.pop("extends", None)
    names = [parents] if isinstance(parents, str) else (parents or [])
    if not isinstance(names, list) or not all(isinstance(entry, str) for entry in names):
        raise UsageError(
            f"extends in {path} must be a profile's name or path, or a list of them.", "Write e.g. `extends: qwen3-4b-topk`."
        )
    layers = [layer for parent in names for layer in profile_layers(parent, path.parent, (*above, path))]
    return [*layers, Layer(_origin(path), path.parent, data)]


def _origin(path: Path) -> str:
    return f"profile {path.stem}" if path.parent == PROFILES else f"file {path}"


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds ({} where it is empty)."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text file.", "Give a YAML file in UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.", "Check the path and its permissions.") from None
    data = yaml_text.parse(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no mapping of keys to values.", "Start it with a section such as `train:`.")
    return data


def model_facts(name: str, base: Path) -> tuple[dict[str, Any], str]:
    """The facts of a model by shipped name or path of a YAML file, and their origin."""
    if name in model_names():
        return read_mapping(PROFILES / "models" / f"{name}.yaml"), f"models/{name}.yaml"
    path = resolved(base / expanded(name))
    if path.is_file():
        return read_mapping(path), f"file {path}"
    near = difflib.get_close_matches(name, model_names(), n=1)
    meant = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(model_names())}."
    raise UsageError(f"There are no model facts {name!r}.", f"{meant} Facts of your own are given by the path of a YAML file.")


def environment_layers(env: Mapping[str, str], base: Path) -> list[Layer]:
    """One layer per OPENCLAW__SECTION__KEY variable."""
    layers = []
    for name in sorted(env):
        if name.startswith(ENV_PREFIX):
            path = name.removeprefix(ENV_PREFIX).lower().split("__")
            layers.append(Layer(f"environment {name}", base, _nest(path, env[name]), raw=True))
    return layers


def misspelt_variables(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that look like OPENCLAW__SECTION__KEY and aren't read, as warnings: another case, or an underscore too few."""
    found = []
    for name in sorted(env):
        if name.startswith(ENV_PREFIX) or not name.upper().startswith("OPENCLAW_"):
            continue
        meant = name.upper().removeprefix("OPENCLAW").lstrip("_")
        if meant.lower().replace("__", ".") in all_keys():
            found.append((f"The environment variable {name} is not read.", f"Call it {ENV_PREFIX}{meant}, or unset it."))
    return found


def override_layers(overrides: Iterable[str], base: Path, problems: list[tuple[str, str]]) -> list[Layer]:
    """One layer per --set; those that are no KEY=VALUE are put on the list of problems."""
    layers = []
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals or not all(part.strip() for part in path.split(".")):
            shown = path if not equals else f"{path}=..."
            problems.append((f"--set {shown} is no KEY=VALUE.", "Write e.g. --set loss.k=8."))
            continue
        layers.append(Layer("--set", base, _nest([part.strip() for part in path.split(".")], value), raw=True))
    return layers


def _nest(path: list[str], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return value


def absolute(value: str, base: Path) -> str:
    """A path of the configuration as an absolute one; package:NAME is a folder shipped with the program."""
    if value.startswith(PACKAGE_PREFIX):
        return packaged(value)
    return str(resolved(base / expanded(value)))


def resolved(path: Path) -> Path:
    """path as an absolute one without links; what can't be followed (a loop, a NUL) stands as it is."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:
        return path.absolute()


def packaged(value: str) -> str:
    """package:NAME as the folder shipped with the program; any other path as it stands."""
    return str(ASSETS / value.removeprefix(PACKAGE_PREFIX)) if value.startswith(PACKAGE_PREFIX) else value
