"""Layers of values become one tree, with the origin of every value; what can't be a value is collected, not raised."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from . import yaml_text
from .keys import Key, all_keys, nearest
from .sources import FILE_KEYS, PACKAGE_PREFIX, Layer, absolute, model_facts, package_names, packaged

_SECRET_NAME = re.compile(r"(^|_)(api_?key|key|token|secret|password|passwd|bearer|authorization|credentials?)$")
_INTERPOLATION = re.compile(r"\$\{|\$\(|\$[A-Za-z_]|^!?ENV\b")
_SECRET_REMEDY = "Put the secret into an environment variable and give that variable's name, e.g. judge.api_key_env=JUDGE_KEY."  # noqa: S105


@dataclass
class Tree:
    """The merged values as nested mappings, the origin of each leaf, and everything that was wrong on the way."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)

    def add(self, layer: Layer) -> None:
        """Lays a layer over what is there."""
        self._mapping(layer, "", layer.data)

    def get(self, path: str) -> Any:
        """The value at a dotted path, None where there is none."""
        here: Any = self.values
        for name in path.split("."):
            if not isinstance(here, dict):
                return None
            here = here.get(name)
        return here

    def _mapping(self, layer: Layer, prefix: str, data: dict[Any, Any]) -> None:
        for name, value in data.items():
            path = f"{prefix}{name}"
            key = all_keys().get(path)
            if key is None:
                self._unknown(layer, path, value)
            elif key.section is not None:
                self._section(layer, key, value)
            elif isinstance(value, dict):
                inner = ", ".join(str(entry) for entry in value) or "nothing"
                self._problem(f"{path} ({layer.origin}) takes a value, not a section with {inner}.", _deeper(path, value))
            else:
                self._value(layer, key, value)

    def _section(self, layer: Layer, key: Key, value: Any) -> None:
        origin = layer.origin
        if layer.raw and isinstance(value, str):
            value = self._parsed(layer, key, value)
        if key.path.endswith(".architecture") and isinstance(value, str):
            try:
                value, origin = model_facts(value, layer.base)
            except UsageError as error:
                self._problem(f"{key.path} ({layer.origin}): {error.what}", error.remedy)
                return
        if value is None:
            self._forget(key.path)
            self._set(key.path, None, origin)
        elif isinstance(value, dict):
            if self.get(key.path) is None:
                self._set(key.path, {}, None)
            self._mapping(Layer(origin, layer.base, value, layer.raw), f"{key.path}.", value)
        else:
            self._problem(
                f"{key.path} ({layer.origin}) is a section, not the value {yaml_text.shown(value)}.",
                f"Set one of its keys, e.g. {_first_key(key)}.",
            )

    def _value(self, layer: Layer, key: Key, value: Any) -> None:
        if layer.raw and isinstance(value, str):
            before = len(self.problems)
            value = self._parsed(layer, key, value)
            if len(self.problems) > before:
                return
        if isinstance(value, str) and _INTERPOLATION.search(value):
            self._problem(
                f"{key.path} ({layer.origin}) would need to be filled in from the environment, which is not done.", _SECRET_REMEDY
            )
            return
        if key.is_path and isinstance(value, str):
            if "\0" in value:
                self._problem(f"{key.path} ({layer.origin}) is {value!r}; no path holds a NUL character.", "Correct the path.")
                return
            if value.startswith(PACKAGE_PREFIX) and not Path(packaged(value)).is_dir():
                shipped = ", ".join(f"{PACKAGE_PREFIX}{name}" for name in package_names())
                self._problem(
                    f"{key.path} ({layer.origin}) is {value}, which doesn't come with the program.", f"There is {shipped}."
                )
                return
            value = absolute(value, layer.base)
        self._set(key.path, value, layer.origin)

    def _parsed(self, layer: Layer, key: Key, text: str) -> Any:
        if key.takes_text and text not in ("null", "~", ""):
            return text
        try:
            return yaml_text.parse(text, f"the value of {key.path} ({layer.origin})")
        except UsageError as error:
            self._problem(error.what, error.remedy)
            return None

    def _unknown(self, layer: Layer, path: str, value: Any) -> None:
        if isinstance(value, dict) and value and not _SECRET_NAME.search(path):
            for name, entry in value.items():
                self._unknown(layer, f"{path}.{name}", entry)
            return
        if _SECRET_NAME.search(path.rpartition(".")[2].lower()):
            self._problem(f"{path} ({layer.origin}) would be a secret given as a value, which is refused.", _SECRET_REMEDY)
            return
        if path in FILE_KEYS:
            self._problem(
                f"{path} ({layer.origin}) can only stand in a profile's file.",
                "Write a profile that extends others, or name another.",
            )
            return
        meant = nearest(path)
        self._problem(
            f"There is no key {path} ({layer.origin}).",
            f"Did you mean {meant}?" if meant else "`openclaw profiles schema` lists all keys.",
        )

    def _set(self, path: str, value: Any, origin: str | None) -> None:
        *above, name = path.split(".")
        here = self.values
        for entry in above:
            here = here.setdefault(entry, {})
        here[name] = value
        if origin is not None:
            self.origins[path] = origin
            self.written.setdefault(path, {})[origin] = value
        else:
            self.origins.pop(path, None)

    def _forget(self, path: str) -> None:
        for known in [entry for entry in self.origins if entry.startswith(f"{path}.")]:
            del self.origins[known]

    def _problem(self, what: str, remedy: str) -> None:
        self.problems.append((what, remedy))


def _deeper(path: str, value: dict[Any, Any]) -> str:
    meant = nearest(f"{path}.{next(iter(value), '')}") if value else None
    return f"Did you mean {meant}?" if meant else f"Write {path}: VALUE."


def _first_key(key: Key) -> str:
    return next((path for path in all_keys() if path.startswith(f"{key.path}.")), key.path)


def working_folder() -> Path:
    """Where relative paths of flags and environment variables start."""
    return Path.cwd()
