"""Samples: ready -> taken -> trained(step), or dropped. trained_step is the truth that a resume goes by."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_core.errors import UserError
from openclaw_core.rollout.store import codec
from openclaw_core.rollout.store.database import Database
from openclaw_core.rollout.store.records import SampleRecord, SampleState
from openclaw_core.types import Candidate, Hint, Sample, SampleKind

STALE = "stale"


@dataclass(frozen=True, slots=True)
class Rollback:
    """How many samples became ready again, by what they were."""

    untrained: int
    untaken: int
    revived: int


class SampleTable(Database):
    """What the capture adds and the driver takes."""

    def add_sample(self, sample: Sample) -> bool:
        """Adds the one sample of a closed turn and marks the turn sampled; False when the turn is not (or no longer) closed."""
        now = time.time()
        with self.write() as connection:
            moved = connection.execute(
                "UPDATE turns SET state = 'sampled' WHERE turn_id = ? AND state = 'closed'", (sample.turn_id,)
            )
            if moved.rowcount != 1:
                return False
            connection.execute(
                "INSERT INTO samples (sample_id, turn_id, state, kind, reward, loss_mask, step_spans, weight_version, created_at)"
                " VALUES (?, ?, 'ready', ?, ?, ?, ?, ?, ?)",
                (
                    sample.sample_id, sample.turn_id, sample.kind.value, sample.reward, codec.pack_mask(sample.loss_mask),
                    None if sample.step_spans is None else codec.to_json(sample.step_spans), sample.weight_version, now,
                ),
            )  # fmt: skip
            connection.executemany(
                "INSERT INTO candidates VALUES (?, ?, ?, ?, ?)",
                [
                    (sample.sample_id, at, c.hint and c.hint.text, c.hint and c.hint.votes, codec.pack_ids(c.hinted_prompt_ids))
                    for at, c in enumerate(sample.candidates)
                ],
            )
            return True

    def take_batch(self, n: int, max_staleness: int, current_version: int) -> list[Sample]:
        """Takes the n oldest ready samples, or none when fewer than n are ready.

        Samples whose weights lag current_version by more than max_staleness are dropped as stale first. The rest stays for
        the next batch. Taken samples are out of reach of other calls until mark_trained or rollback.
        """
        now = time.time()
        with self.write() as connection:
            connection.execute(
                "UPDATE samples SET state = 'dropped', reason = ? WHERE state = 'ready' AND weight_version < ?",
                (STALE, current_version - max_staleness),
            )
            rows = connection.execute("SELECT seq FROM samples WHERE state = 'ready' ORDER BY seq LIMIT ?", (n,)).fetchall()
            if n < 1 or len(rows) < n:
                return []
            last = rows[-1]["seq"]
            rows = connection.execute(
                _SELECT + " WHERE samples.state = 'ready' AND samples.seq <= ? ORDER BY samples.seq", (last,)
            ).fetchall()
            batch = [_sample(connection, row).sample for row in rows]
            connection.execute("UPDATE samples SET state = 'taken', taken_at = ? WHERE state = 'ready' AND seq <= ?", (now, last))
        return batch

    def mark_trained(self, sample_ids: Sequence[str], step: int) -> None:
        """Marks taken samples as trained in a step, all or none, durably. Raises UserError when one of them is not taken."""
        now = time.time()
        with self.write(durable=True) as connection:
            for sample_id in sample_ids:
                changed = connection.execute(
                    "UPDATE samples SET state = 'trained', trained_step = ?, trained_at = ?"
                    " WHERE sample_id = ? AND state = 'taken'",
                    (step, now, sample_id),
                )
                if changed.rowcount != 1:
                    raise UserError(
                        f"Sample {sample_id} of step {step} is not marked as taken, so it may have been trained before.",
                        "Take samples with take_batch, and roll back to the last checkpoint after a restart.",
                    )

    def mark_scored(self, sample_ids: Sequence[str]) -> None:
        """Notes that the teacher has scored these samples."""
        now = time.time()
        with self.write() as connection:
            connection.executemany("UPDATE samples SET scored_at = ? WHERE sample_id = ?", [(now, i) for i in sample_ids])

    def rollback(self, to_step: int) -> Rollback:
        """Back to the checkpoint of to_step: what was trained later, taken or dropped as stale is ready again, in its old place.

        Scores are forgotten, for they lived in processes that ended. Samples that are still stale are dropped again when a
        batch is taken.
        """
        ready = "UPDATE samples SET state = 'ready', trained_step = NULL, trained_at = NULL, taken_at = NULL, reason = NULL"
        ready += " WHERE "
        with self.write(durable=True) as connection:
            untrained = connection.execute(ready + "state = 'trained' AND trained_step > ?", (to_step,)).rowcount
            untaken = connection.execute(ready + "state = 'taken'").rowcount
            revived = connection.execute(ready + "state = 'dropped' AND reason = ?", (STALE,)).rowcount
            connection.execute("UPDATE samples SET scored_at = NULL WHERE state = 'ready'")
            detail = codec.to_json({"to_step": to_step, "untrained": untrained, "untaken": untaken, "revived": revived})
            connection.execute("INSERT INTO events (at, kind, detail) VALUES (?, 'rollback', ?)", (time.time(), detail))
        return Rollback(untrained, untaken, revived)

    def drop_sample(self, sample_id: str, reason: str) -> bool:
        """Drops a ready or taken sample for a reason; False when it was trained or dropped before."""
        with self.write() as connection:
            changed = connection.execute(
                "UPDATE samples SET state = 'dropped', reason = ? WHERE sample_id = ? AND state IN ('ready', 'taken')",
                (reason, sample_id),
            )
            return changed.rowcount == 1

    def ready_count(self) -> int:
        return self.connection.execute("SELECT count(*) FROM samples WHERE state = 'ready'").fetchone()[0]

    def waiting_ids(self) -> set[str]:
        """Samples that are still to be trained: ready or taken."""
        rows = self.connection.execute("SELECT sample_id FROM samples WHERE state IN ('ready', 'taken')")
        return {row["sample_id"] for row in rows}

    def unscored(self, limit: int) -> list[Sample]:
        """The oldest ready or taken samples that the teacher hasn't scored."""
        rows = self.connection.execute(
            _SELECT + " WHERE samples.state IN ('ready', 'taken') AND scored_at IS NULL ORDER BY samples.seq LIMIT ?", (limit,)
        ).fetchall()
        return [_sample(self.connection, row).sample for row in rows]

    def sample(self, sample_id: str) -> SampleRecord | None:
        row = self.connection.execute(_SELECT + " WHERE sample_id = ?", (sample_id,)).fetchone()
        return _sample(self.connection, row) if row else None

    def sample_of_turn(self, turn_id: str) -> SampleRecord | None:
        row = self.connection.execute(_SELECT + " WHERE samples.turn_id = ?", (turn_id,)).fetchone()
        return _sample(self.connection, row) if row else None

    def samples(
        self, *, state: SampleState | None = None, trained_step: int | None = None, limit: int = 100, offset: int = 0
    ) -> list[SampleRecord]:
        """Samples in the order they were made."""
        rows = self.connection.execute(
            _SELECT + " WHERE (? IS NULL OR samples.state = ?) AND (? IS NULL OR trained_step = ?)"
            " ORDER BY samples.seq LIMIT ? OFFSET ?",
            (state, state, trained_step, trained_step, limit, offset),
        ).fetchall()
        return [_sample(self.connection, row) for row in rows]


_SELECT = (
    "SELECT samples.*, turns.prompt_ids, turns.response_ids, turns.response_logprobs FROM samples JOIN turns USING (turn_id)"
)


def _sample(connection: sqlite3.Connection, row: sqlite3.Row) -> SampleRecord:
    rows = connection.execute("SELECT * FROM candidates WHERE sample_id = ? ORDER BY position", (row["sample_id"],))
    candidates = tuple(
        Candidate(codec.unpack_ids(c["hinted_prompt_ids"]), None if c["hint"] is None else Hint(c["hint"], c["hint_votes"]))
        for c in rows
    )
    spans = row["step_spans"]
    sample = Sample(
        sample_id=row["sample_id"],
        turn_id=row["turn_id"],
        kind=SampleKind(row["kind"]),
        reward=row["reward"],
        prompt_ids=codec.unpack_ids(row["prompt_ids"]),
        response_ids=codec.unpack_ids(row["response_ids"]),
        response_logprobs=codec.unpack_floats(row["response_logprobs"]),
        loss_mask=codec.unpack_mask(row["loss_mask"]),
        candidates=candidates,
        weight_version=row["weight_version"],
        step_spans=None if spans is None else tuple((begin, end) for begin, end in codec.from_json(spans)),
    )
    return SampleRecord(sample, row["state"], row["reason"], row["trained_step"], row["created_at"], row["scored_at"])
