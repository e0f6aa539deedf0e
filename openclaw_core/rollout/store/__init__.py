"""The SQLite store: the only queue between conversation and training."""

from __future__ import annotations

from openclaw_core.rollout.store.funnel import Funnel, FunnelTable
from openclaw_core.rollout.store.records import (
    HintRecord,
    NewTurn,
    SampleRecord,
    SampleState,
    SessionRecord,
    TurnRecord,
    TurnState,
    Vote,
    VoteKind,
)
from openclaw_core.rollout.store.samples import Rollback, SampleTable
from openclaw_core.rollout.store.turns import TurnTable


class Store(TurnTable, SampleTable, FunnelTable):
    """A run's store, opened by path; any number of threads and processes may hold one on the same file."""


__all__ = [
    "Funnel",
    "HintRecord",
    "NewTurn",
    "Rollback",
    "SampleRecord",
    "SampleState",
    "SessionRecord",
    "Store",
    "TurnRecord",
    "TurnState",
    "Vote",
    "VoteKind",
]
