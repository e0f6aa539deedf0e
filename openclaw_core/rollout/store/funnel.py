"""The funnel: how many turns came how far, and why the others were left."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from openclaw_core.rollout.store import codec
from openclaw_core.rollout.store.database import Database


@dataclass(frozen=True, slots=True)
class Funnel:
    """received counts requests and main those for training; the others count turns and samples that came at least so far.

    ready counts samples that wait for a batch. dropped counts turns and samples by reason; refused counts requests by reason.
    """

    received: int = 0
    main: int = 0
    answered: int = 0
    closed: int = 0
    judged: int = 0
    hinted: int = 0
    sampled: int = 0
    scored: int = 0
    trained: int = 0
    ready: int = 0
    open: int = 0
    sessions: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def counts(self) -> dict[str, int]:
        """What are plain numbers, without the reasons."""
        return {name: value for name, value in asdict(self).items() if isinstance(value, int)}


class FunnelTable(Database):
    """Counters and events beside the rows that speak for themselves."""

    def count(self, name: str, by: int = 1) -> None:
        """Adds to a counter: received, main, or refused:<reason>."""
        with self.write() as connection:
            connection.execute(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value", (name, by)
            )

    def add_event(self, kind: str, subject: str | None = None, **detail: Any) -> None:
        """Notes something that happened to a turn, a sample, a session or the service."""
        with self.write() as connection:
            connection.execute(
                "INSERT INTO events (at, kind, subject, detail) VALUES (?, ?, ?, ?)",
                (time.time(), kind, subject, codec.to_json(detail)),
            )

    def events(self, *, subject: str | None = None, kind: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest events, oldest of them first."""
        rows = self.connection.execute(
            "SELECT * FROM events WHERE (? IS NULL OR subject = ?) AND (? IS NULL OR kind = ?) ORDER BY seq DESC LIMIT ?",
            (subject, subject, kind, kind, limit),
        ).fetchall()
        return [{**dict(row), "detail": codec.from_json(row["detail"])} for row in reversed(rows)]

    def funnel(self) -> Funnel:
        """All counts of one moment."""
        connection = self.connection
        connection.execute("BEGIN")
        try:
            counters = {row["name"]: row["value"] for row in connection.execute("SELECT * FROM counters")}
            turns = connection.execute(
                "SELECT count(*) AS answered, coalesce(sum(closed_at IS NOT NULL), 0) AS closed,"
                " coalesce(sum(judged_at IS NOT NULL), 0) AS judged, coalesce(sum(state = 'open'), 0) AS open FROM turns"
            ).fetchone()
            hinted = connection.execute("SELECT count(DISTINCT turn_id) AS n FROM hints WHERE accepted").fetchone()["n"]
            samples = connection.execute(
                "SELECT count(*) AS sampled, coalesce(sum(scored_at IS NOT NULL OR state = 'trained'), 0) AS scored,"
                " coalesce(sum(state = 'trained'), 0) AS trained, coalesce(sum(state = 'ready'), 0) AS ready FROM samples"
            ).fetchone()
            sessions = connection.execute("SELECT count(*) AS n FROM sessions").fetchone()["n"]
            dropped = connection.execute(
                "SELECT reason, count(*) AS n FROM (SELECT reason FROM turns WHERE state = 'dropped'"
                " UNION ALL SELECT reason FROM samples WHERE state = 'dropped') GROUP BY reason ORDER BY n DESC"
            ).fetchall()
        finally:
            connection.execute("COMMIT")
        refused = {name.removeprefix("refused:"): value for name, value in counters.items() if name.startswith("refused:")}
        return Funnel(
            received=counters.get("received", 0), main=counters.get("main", 0), **dict(turns), hinted=hinted, **dict(samples),
            sessions=sessions, dropped={row["reason"]: row["n"] for row in dropped}, refused=refused,
        )  # fmt: skip
