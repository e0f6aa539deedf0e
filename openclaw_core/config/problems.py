"""From the schema's complaints to sentences: which key, which value, from where, what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from .keys import all_keys
from .yaml_text import shown

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "finite_number": "a finite number",
    "tuple_type": "a list",
    "dict_type": "a section",
    "model_type": "a section",
}
_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def sentences(error: ValidationError, origins: Mapping[str, str]) -> list[tuple[str, str]]:
    """One (what, remedy) per complaint, in the schema's order."""
    found: dict[str, tuple[str, str]] = {}
    for entry in error.errors(include_url=False):
        path = key_path(entry["loc"])
        found.setdefault(path, _sentence(path, entry, origins.get(path)))
    return list(found.values())


def key_path(location: tuple[int | str, ...]) -> str:
    """The key that a complaint is about, without positions in lists and names of union members."""
    path = ""
    for part in location:
        longer = f"{path}.{part}" if path else str(part)
        if longer not in all_keys():
            break
        path = longer
    return path or ".".join(map(str, location))


def _sentence(path: str, entry: Any, origin: str | None) -> tuple[str, str]:
    kind, context = entry["type"], entry.get("ctx", {})
    key = all_keys().get(path)
    about = key.field.description or "" if key else ""
    if kind == "missing":
        example = next((name for name in all_keys() if name.startswith(f"{path}.")), path)
        return f"{path} is missing.", f"Give it in the profile or with --set {example}=VALUE. {about}".rstrip()
    place = f"{path} ({origin})" if origin else path
    if path.endswith("api_key_env"):
        return (
            f"{place} must name an environment variable in capitals; what was given is not shown, for it may be the key itself.",
            "Put the key into an environment variable and give that variable's name.",
        )
    value = shown(entry["input"])
    if kind in _KINDS:
        return f"{place} is {value}, but must be {_KINDS[kind]}.", about
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{place} is {value}, but must be {words} {context[name]}.", about
    if kind == "literal_error":
        allowed = [str(value) for value in _allowed(context["expected"])]
        near = difflib.get_close_matches(str(entry["input"]), allowed, n=1)
        return f"{place} is {value}, but must be one of {', '.join(allowed)}.", f"Did you mean {near[0]}?" if near else about
    reason = str(context["error"]) if "error" in context else entry["msg"]
    return f"{place} is {value}: {reason}.", about


def _allowed(expected: str) -> list[str]:
    return [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]
