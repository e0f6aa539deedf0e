"""Sessions, turns, votes and hints: open -> closed -> sampled, or dropped with a reason at any point."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from uuid import uuid4

from openclaw_core.rollout.store import codec
from openclaw_core.rollout.store.database import Database
from openclaw_core.rollout.store.records import HintRecord, NewTurn, SessionRecord, TurnRecord, TurnState, Vote, VoteKind
from openclaw_core.types import Message, Turn

NO_NEXT_STATE = "no_next_state"


class TurnTable(Database):
    """What the proxy and the capture write and read."""

    def open_session(self, *, header_id: str | None = None, user_id: str | None = None) -> SessionRecord:
        """The session of a request: by header, else by the body's user field, else a new one. Both ids are recorded."""
        source, client_id = ("header", header_id) if header_id else ("user", user_id) if user_id else ("generated", None)
        now = time.time()
        with self.write() as connection:
            row = connection.execute(
                "SELECT session_id FROM sessions WHERE id_source = ? AND client_id = ?", (source, client_id)
            ).fetchone()
            session_id = row["session_id"] if row else uuid4().hex
            if row:
                connection.execute(
                    "UPDATE sessions SET last_seen_at = ?, ended_at = NULL, end_reason = NULL, user_id = coalesce(?, user_id)"
                    " WHERE session_id = ?",
                    (now, user_id, session_id),
                )
            else:
                connection.execute(
                    "INSERT INTO sessions (session_id, id_source, client_id, header_id, user_id, started_at, last_seen_at)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (session_id, source, client_id, header_id, user_id, now, now),
                )
            return _session(connection.execute("SELECT * FROM sessions WHERE session_id = ?", (session_id,)).fetchone())

    def touch_session(self, session_id: str) -> None:
        with self.write() as connection:
            connection.execute("UPDATE sessions SET last_seen_at = ? WHERE session_id = ?", (time.time(), session_id))

    def add_turn(self, new: NewTurn) -> None:
        """Writes a turn before its reply is sent: open, or dropped at once where it has a drop_reason."""
        turn, now = new.turn, time.time()
        with self.write() as connection:
            row = {
                "turn_id": turn.turn_id, "session_id": turn.session_id, "lineage_id": turn.lineage_id,
                "parent_turn_id": new.parent_turn_id, "continuation_key": new.continuation_key,
                "state": "dropped" if new.drop_reason else "open", "reason": new.drop_reason,
                "finish_reason": turn.finish_reason, "weight_version": turn.weight_version, "thinking": int(new.thinking),
                "flags": codec.to_json(new.flags), "created_at": now, "request": codec.to_json(new.request),
                "messages": codec.to_json(turn.messages), "tools": codec.to_json(turn.tools),
                "reply": codec.to_json(turn.reply), "text": new.text,
                "prompt_ids": codec.pack_ids(turn.prompt_ids), "response_ids": codec.pack_ids(turn.response_ids),
                "response_logprobs": codec.pack_floats(turn.response_logprobs),
            }  # fmt: skip
            names = ", ".join(row)
            marks = ", ".join(f":{name}" for name in row)
            connection.execute(f"INSERT INTO turns ({names}) VALUES ({marks})", row)  # noqa: S608 - names are the keys above
            connection.execute("UPDATE sessions SET last_seen_at = ? WHERE session_id = ?", (now, turn.session_id))

    def close_turn(self, turn_id: str, next_state: Sequence[Message], *, next_turn_id: str | None = None) -> bool:
        """Gives an open turn its next state; False when it is no longer open (then nothing changes)."""
        with self.write() as connection:
            changed = connection.execute(
                "UPDATE turns SET state = 'closed', next_state = ?, next_turn_id = ?, closed_at = ?"
                " WHERE turn_id = ? AND state = 'open'",
                (codec.to_json(list(next_state)), next_turn_id, time.time(), turn_id),
            )
            return changed.rowcount == 1

    def drop_turn(self, turn_id: str, reason: str, *, next_state: Sequence[Message] | None = None) -> bool:
        """Drops an open or closed turn for a reason; False when it was sampled or dropped before."""
        with self.write() as connection:
            changed = connection.execute(
                "UPDATE turns SET state = 'dropped', reason = ?, next_state = coalesce(?, next_state)"
                " WHERE turn_id = ? AND state IN ('open', 'closed')",
                (reason, None if next_state is None else codec.to_json(list(next_state)), turn_id),
            )
            return changed.rowcount == 1

    def end_idle_sessions(self, idle_s: float, *, now: float | None = None) -> int:
        """Ends sessions not seen for idle_s seconds and drops their open turns as no_next_state; returns how many turns."""
        now = time.time() if now is None else now
        with self.write() as connection:
            idle = connection.execute(
                "SELECT session_id FROM sessions WHERE ended_at IS NULL AND last_seen_at < ?", (now - idle_s,)
            )
            return sum(_end_session(connection, row["session_id"], now, "idle") for row in idle.fetchall())

    def end_session(self, session_id: str, reason: str = "ended by the client") -> int:
        """Ends one session in the same way."""
        with self.write() as connection:
            return _end_session(connection, session_id, time.time(), reason)

    def find_continued(self, keys: Sequence[str], session_id: str | None = None) -> list[tuple[str, str, str, str, TurnState]]:
        """Turns whose messages + reply hash to one of the keys, newest first: (turn_id, session_id, lineage_id, key, state).

        With a session_id only its turns; without one only turns of sessions whose client gave no id.
        """
        rows = self.connection.execute(
            "SELECT turn_id, turns.session_id, lineage_id, continuation_key, state FROM turns JOIN sessions USING (session_id)"
            " WHERE continuation_key IN (SELECT value FROM json_each(?))"
            " AND CASE WHEN ? IS NULL THEN id_source = 'generated' ELSE turns.session_id = ? END ORDER BY turns.seq DESC",
            (codec.to_json(list(keys)), session_id, session_id),
        )
        return [tuple(row) for row in rows]

    def record_votes(self, turn_id: str, votes: Iterable[Vote], hints: Iterable[HintRecord] = ()) -> None:
        """Writes all votes and hints of a turn in one go, in place of earlier ones. From then on the turn counts as judged."""
        now = time.time()
        with self.write() as connection:
            connection.execute("DELETE FROM votes WHERE turn_id = ?", (turn_id,))
            connection.execute("DELETE FROM hints WHERE turn_id = ?", (turn_id,))
            connection.executemany(
                "INSERT INTO votes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(turn_id, v.kind, v.index, v.value, v.hint, v.reason, v.raw, v.prompt_sha256, v.seconds, now) for v in votes],
            )
            connection.executemany(
                "INSERT INTO hints VALUES (?, ?, ?, ?, ?, ?)",
                [(turn_id, position, h.text, h.votes, int(h.accepted), h.reason) for position, h in enumerate(hints)],
            )
            connection.execute("UPDATE turns SET judged_at = ? WHERE turn_id = ?", (now, turn_id))

    def reject_hint(self, turn_id: str, text: str, reason: str) -> None:
        """An accepted hint that can't be used after all, and why."""
        with self.write() as connection:
            connection.execute(
                "UPDATE hints SET accepted = 0, reason = ? WHERE turn_id = ? AND text = ?", (reason, turn_id, text)
            )

    def turn(self, turn_id: str) -> TurnRecord | None:
        row = self.connection.execute("SELECT * FROM turns WHERE turn_id = ?", (turn_id,)).fetchone()
        return _turn(row) if row else None

    def turns(
        self, *, session_id: str | None = None, state: TurnState | None = None, limit: int = 100, offset: int = 0
    ) -> list[TurnRecord]:
        """Turns in the order they were answered."""
        rows = self.connection.execute(
            "SELECT * FROM turns WHERE (? IS NULL OR session_id = ?) AND (? IS NULL OR state = ?) ORDER BY seq LIMIT ? OFFSET ?",
            (session_id, session_id, state, state, limit, offset),
        )
        return [_turn(row) for row in rows]

    def pending_turns(self, limit: int = 1000) -> list[str]:
        """Ids of closed turns that have no sample yet, oldest first: what is to be judged or, once judged, dispatched."""
        rows = self.connection.execute("SELECT turn_id FROM turns WHERE state = 'closed' ORDER BY seq LIMIT ?", (limit,))
        return [row["turn_id"] for row in rows]

    def votes(self, turn_id: str, kind: VoteKind | None = None) -> list[Vote]:
        rows = self.connection.execute(
            "SELECT kind, vote_index, value, hint, reason, raw, prompt_sha256, seconds FROM votes"
            " WHERE turn_id = ? AND (? IS NULL OR kind = ?) ORDER BY kind DESC, vote_index",
            (turn_id, kind, kind),
        )
        return [Vote(*row) for row in rows]

    def hints(self, turn_id: str) -> list[HintRecord]:
        rows = self.connection.execute("SELECT * FROM hints WHERE turn_id = ? ORDER BY position", (turn_id,))
        return [HintRecord(row["text"], row["votes"], bool(row["accepted"]), row["reason"]) for row in rows]

    def session(self, session_id: str) -> SessionRecord | None:
        row = self.connection.execute("SELECT * FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
        return _session(row) if row else None


def _end_session(connection: sqlite3.Connection, session_id: str, now: float, reason: str) -> int:
    connection.execute("UPDATE sessions SET ended_at = ?, end_reason = ? WHERE session_id = ?", (now, reason, session_id))
    dropped = connection.execute(
        "UPDATE turns SET state = 'dropped', reason = ? WHERE state = 'open' AND session_id = ?", (NO_NEXT_STATE, session_id)
    )
    return dropped.rowcount


def _session(row: sqlite3.Row) -> SessionRecord:
    return SessionRecord(**dict(row))


def _turn(row: sqlite3.Row) -> TurnRecord:
    next_state = row["next_state"]
    turn = Turn(
        turn_id=row["turn_id"],
        session_id=row["session_id"],
        lineage_id=row["lineage_id"],
        messages=tuple(codec.from_json(row["messages"])),
        tools=tuple(codec.from_json(row["tools"])),
        reply=codec.from_json(row["reply"]),
        prompt_ids=codec.unpack_ids(row["prompt_ids"]),
        response_ids=codec.unpack_ids(row["response_ids"]),
        response_logprobs=codec.unpack_floats(row["response_logprobs"]),
        finish_reason=row["finish_reason"],
        weight_version=row["weight_version"],
    )
    return TurnRecord(
        turn=turn,
        state=row["state"],
        reason=row["reason"],
        text=row["text"],
        thinking=bool(row["thinking"]),
        parent_turn_id=row["parent_turn_id"],
        next_state=None if next_state is None else tuple(codec.from_json(next_state)),
        next_turn_id=row["next_turn_id"],
        flags=tuple(codec.from_json(row["flags"])),
        request=codec.from_json(row["request"]),
        created_at=row["created_at"],
        closed_at=row["closed_at"],
        judged_at=row["judged_at"],
    )
