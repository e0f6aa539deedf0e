"""Errors meant for users: one sentence with the names and values involved, and what to do."""

from __future__ import annotations

from typing import Any


class UserError(Exception):
    """Something the user can mend. exit_code is 1 for findings and failures, 2 for usage."""

    exit_code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}".strip()

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders; pickle would call __init__ with args alone, which subclasses needn't accept.
        return _rebuilt, (type(self), self.args, self.__dict__)


def first_line(error: BaseException) -> str:
    """What an error of a library says in its first line; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _rebuilt(cls: type[UserError], args: tuple[Any, ...], state: dict[str, Any]) -> UserError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class UsageError(UserError):
    """Wrong flags, keys or values: nothing was started."""

    exit_code = 2


class Findings(UserError):
    """Several things at once; each entry is one (what, remedy) pair."""

    def __init__(self, title: str, findings: list[tuple[str, str]]) -> None:
        super().__init__(title)
        self.findings = findings

    def __str__(self) -> str:
        lines = [self.what, *(f"  - {what} {remedy}".rstrip() for what, remedy in self.findings)]
        return "\n".join(lines)


class UsageFindings(Findings, UsageError):
    """Several wrong flags, keys or values at once: nothing was started."""
