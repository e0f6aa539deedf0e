"""NaN and Inf are found on the device and named on the host, at a moment of the caller's choice."""

from __future__ import annotations

from torch import Tensor

from openclaw_core.errors import Findings
from openclaw_core.loss.rows import Rows

NAMED = 8


def raise_on_bad_rows(rows: Rows, bad: Tensor, what: str, remedy: str) -> None:
    """Findings that name the rows of bad [N] (the first few). Synchronises with the device once."""
    where = bad.nonzero().squeeze(1).tolist()
    if where:
        named = [(f"{rows.name(row)}: {what};", remedy) for row in where[:NAMED]]
        raise Findings(f"{len(where)} of {rows.count} response positions cannot be trained on:", named)
