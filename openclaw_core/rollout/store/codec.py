"""How ids, log-probs and messages lie in a cell: little-endian int32, float64 and uint8; JSON for the rest."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable
from typing import Any


def _pack(typecode: str, values: Iterable[Any]) -> bytes:
    cells = array(typecode, values)
    if sys.byteorder == "big":
        cells.byteswap()
    return cells.tobytes()


def _unpack(typecode: str, blob: bytes) -> tuple[Any, ...]:
    cells = array(typecode)
    cells.frombytes(blob)
    if sys.byteorder == "big":
        cells.byteswap()
    return tuple(cells)


def pack_ids(ids: Iterable[int]) -> bytes:
    return _pack("i", ids)


def unpack_ids(blob: bytes) -> tuple[int, ...]:
    return _unpack("i", blob)


def pack_floats(values: Iterable[float]) -> bytes:
    return _pack("d", values)


def unpack_floats(blob: bytes) -> tuple[float, ...]:
    return _unpack("d", blob)


def pack_mask(mask: Iterable[int]) -> bytes:
    return _pack("B", mask)


def unpack_mask(blob: bytes) -> tuple[int, ...]:
    return _unpack("B", blob)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def from_json(text: str) -> Any:
    return json.loads(text)
