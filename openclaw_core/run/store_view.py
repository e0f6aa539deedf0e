"""What status reads from a run's store: counts of votes and hints, and what waits since when."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ..errors import UserError
from ..rollout.store import Funnel, Store
from .runfolder import RunFolder

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Turns or samples that wait for a stage, and how many seconds the oldest of them has waited."""

    stage: str
    count: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class StoreView:
    """One moment of a store. votes counts by "verdict" or "hint" and value ("none": no valid vote, by reason in no_votes).

    waiting lists stages in the order of the funnel. last_request_s is the time since the newest turn, recent_samples how many
    samples were made in the last window_s seconds.
    """

    funnel: Funnel
    votes: dict[str, dict[str, int]] = field(default_factory=dict)
    no_votes: dict[str, int] = field(default_factory=dict)
    hints_accepted: int = 0
    hints_rejected: dict[str, int] = field(default_factory=dict)
    reward: float | None = None
    waiting: tuple[Waiting, ...] = ()
    last_request_s: float | None = None
    last_trained_s: float | None = None
    recent_samples: int = 0
    window_s: float = 300.0


_WAITING = (
    ("closed", "turns WHERE state = 'open'", "created_at"),
    ("judged", "turns WHERE state = 'closed' AND judged_at IS NULL", "closed_at"),
    ("sampled", "turns WHERE state = 'closed' AND judged_at IS NOT NULL", "judged_at"),
    ("scored", "samples WHERE state IN ('ready', 'taken') AND scored_at IS NULL", "created_at"),
    ("trained", "samples WHERE state = 'taken'", "taken_at"),
)


def read_store(run: RunFolder, read: Callable[[Store], T], problems: list[str]) -> T | None:
    """What read finds in the run's store; None where there is none, or it can't be read, which is added to problems."""
    if not run.store.exists():
        return None
    try:
        store = Store(run.store, read_only=True)
        try:
            return read(store)
        finally:
            store.close()
    except (UserError, sqlite3.Error) as error:
        problems.append(str(error) if isinstance(error, UserError) else f"{run.store.name}: {error}")
        return None


def view_store(store: Store, now: float, *, window_s: float = 300.0) -> StoreView:
    """Reads everything; the store may be open read-only and in use."""
    query = store.connection.execute
    votes: dict[str, dict[str, int]] = {"verdict": {}, "hint": {}}
    no_votes: dict[str, int] = {}
    for kind, value, reason, count in query("SELECT kind, value, reason, count(*) FROM votes GROUP BY kind, value, reason"):
        name = "none" if value is None else f"{value:+d}" if value else "0"
        votes[kind][name] = votes[kind].get(name, 0) + count
        if value is None:
            no_votes[reason or "unknown"] = no_votes.get(reason or "unknown", 0) + count
    rejected = query("SELECT coalesce(reason, 'unknown'), count(*) FROM hints WHERE NOT accepted GROUP BY 1 ORDER BY 2 DESC")
    waiting = (Waiting(stage, *_count_and_age(store, rows, column, now)) for stage, rows, column in _WAITING)
    requested, trained = (
        query(f"SELECT max({what}").fetchone()[0] for what in ("created_at) FROM turns", "trained_at) FROM samples")
    )
    return StoreView(
        funnel=store.funnel(),
        votes=votes,
        no_votes=no_votes,
        hints_accepted=query("SELECT count(*) FROM hints WHERE accepted").fetchone()[0],
        hints_rejected=dict(tuple(row) for row in rejected),
        reward=query("SELECT avg(reward) FROM samples WHERE kind != 'opd' AND state != 'dropped'").fetchone()[0],
        waiting=tuple(one for one in waiting if one.count),
        last_request_s=None if requested is None else now - requested,
        last_trained_s=None if trained is None else now - trained,
        recent_samples=query("SELECT count(*) FROM samples WHERE created_at > ?", (now - window_s,)).fetchone()[0],
        window_s=window_s,
    )


def _count_and_age(store: Store, rows: str, column: str, now: float) -> tuple[int, float]:
    query = f"SELECT count(*), min({column}) FROM {rows}"  # noqa: S608 - from _WAITING
    count, oldest = store.connection.execute(query).fetchone()
    return count, 0.0 if oldest is None else max(0.0, now - oldest)
