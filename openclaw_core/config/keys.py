"""The keys of a configuration: which there are, what each holds, and which one a wrong key meant."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .schema import Config

ALIASES = {"topk": "loss.k", "numcandidates": "loss.max_candidates", "learningrate": "optimizer.lr", "model": "student.hf"}


@dataclass(frozen=True)
class Key:
    """One key of the schema: its dotted path, its field, and the section it opens (None for a value)."""

    path: str
    field: FieldInfo
    section: type[BaseModel] | None

    @property
    def is_path(self) -> bool:
        """Whether the value is a path of the file system."""
        return any((extra or {}).get("format") == "path" for extra in self._extras())

    @property
    def takes_text(self) -> bool:
        """Whether the value is free text, which is taken as it was written."""
        return str in self._plain_types()

    def _plain_types(self) -> tuple[Any, ...]:
        found: list[Any] = []
        for part in _members(self.field.annotation):
            found.append(typing.get_args(part)[0] if typing.get_origin(part) is typing.Annotated else part)
        return tuple(found)

    def _extras(self) -> list[Any]:
        extras: list[Any] = [self.field.json_schema_extra]
        for part in _members(self.field.annotation):
            if typing.get_origin(part) is typing.Annotated:
                extras += [getattr(note, "json_schema_extra", None) for note in typing.get_args(part)[1:]]
        return [extra for extra in extras if isinstance(extra, dict)]


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, the annotation itself where it is none."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field opens, also where the field may be null."""
    for part in _members(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Every key below model, sections before their contents, in the schema's order."""
    for name, field in model.model_fields.items():
        key = Key(f"{prefix}{name}", field, section_of(field.annotation))
        yield key
        if key.section is not None:
            yield from walk(key.section, f"{key.path}.")


@cache
def all_keys() -> dict[str, Key]:
    """Every key of Config by its dotted path."""
    return {key.path: key for key in walk(Config)}


def nearest(path: str) -> str | None:
    """The known key that an unknown one most likely meant: the same name elsewhere, a near name beside it, a near path."""
    known = list(all_keys())
    parent, _, name = path.rpartition(".")
    beside = [key for key in known if key.rpartition(".")[0] == parent and _bare(key.rpartition(".")[2]) == _bare(name)]
    if beside or _bare(name) in ALIASES:
        return beside[0] if beside else ALIASES[_bare(name)]

    def likeness(candidate: str) -> float:
        other_parent, _, other = candidate.rpartition(".")
        alike = difflib.SequenceMatcher(None, _bare(name), _bare(other)).ratio()
        return alike + (0.25 if other_parent == parent else 0.15 * difflib.SequenceMatcher(None, parent, other_parent).ratio())

    best = max(known, key=likeness)
    same_name = _bare(name) == _bare(best.rpartition(".")[2])
    return best if same_name or likeness(best) >= 0.8 else None


def _bare(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
