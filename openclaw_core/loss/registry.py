"""Named implementations, one per file of a folder; a new file is a new name."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import Generic, TypeVar

from openclaw_core.errors import UsageError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps the file names of a package to the object called `attribute` in each of them.

    kind is the word used in messages ("selection"), package the dotted name of the folder.
    """

    def __init__(self, kind: str, package: str, attribute: str) -> None:
        self._kind = kind
        self._package = package
        self._attribute = attribute

    def names(self) -> tuple[str, ...]:
        """All names, sorted; imports none of them."""
        folder = importlib.import_module(self._package).__path__
        return tuple(sorted(module.name for module in pkgutil.iter_modules(folder)))

    def get(self, name: str) -> T:
        """The implementation called `name`; UsageError with the known names when there is none."""
        names = self.names()
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}."
            raise UsageError(f"there is no {self._kind} called {name!r};", hint)
        found: T = getattr(importlib.import_module(f"{self._package}.{name}"), self._attribute)
        return found
