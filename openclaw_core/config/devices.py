"""Device ids as people write them."""

from __future__ import annotations

import re
from typing import Any

_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def parse_devices(value: Any) -> Any:
    """Text such as 2,3,5-7 as (2, 3, 5, 6, 7), in the order written; lists of integers as they stand, anything else untouched.

    Raises ValueError for text that is no such list and for an id that is given twice.
    """
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        value = (value,)
    if isinstance(value, str):
        value = _parse(value)
    if isinstance(value, list | tuple):
        value = tuple(value)
        if len(set(map(str, value))) != len(value):
            raise ValueError(f"names a device twice: {','.join(map(str, value))}")
        if not value:
            raise ValueError("names no device")
    return value


def _parse(text: str) -> tuple[int, ...]:
    ids: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text!r} is no list of device ids such as 2,3,5-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + 1024:
            raise ValueError(f"{part.strip()!r} is no range of device ids")
        ids.extend(range(first, last + 1))
    return tuple(ids)
