from __future__ import annotations

import os
import sqlite3
import stat
import threading

import pytest

from openclaw_core.errors import UserError
from openclaw_core.rollout.store import HintRecord, Store, Vote

NEXT = ({"role": "user", "content": "thanks"},)


def test_turn_survives_a_round_trip_exactly(store, make_turn):
    turn = make_turn(
        messages=({"role": "user", "content": "grüße\n🙂"},), tools=({"type": "function", "function": {"name": "f"}},),
        prompt_ids=(0, 151_700, 2**31 - 1), response_logprobs=(-0.1, -1e-300), weight_version=12,
    )  # fmt: skip
    record = Store(store.path).turn(turn.turn_id)
    assert record is not None
    assert record.turn == turn
    assert (record.state, record.next_state, record.judged_at) == ("open", None, None)


def test_session_id_precedence_and_all_ids_recorded(store):
    header = store.open_session(header_id="H", user_id="U")
    assert (header.id_source, header.client_id, header.header_id, header.user_id) == ("header", "H", "H", "U")
    assert store.open_session(header_id="H").session_id == header.session_id
    user = store.open_session(user_id="H")
    assert (user.id_source, user.session_id != header.session_id) == ("user", True)
    made = [store.open_session() for _ in range(2)]
    assert {s.id_source for s in made} == {"generated"}
    assert made[0].session_id != made[1].session_id


def test_a_turn_is_closed_once(store, make_turn):
    turn = make_turn()
    assert store.close_turn(turn.turn_id, NEXT)
    assert not store.close_turn(turn.turn_id, ({"role": "user", "content": "other"},))
    assert store.turn(turn.turn_id).next_state == NEXT


def test_dropped_turns_stay_with_their_reason(store, make_turn):
    turn = make_turn(drop_reason="abort")
    assert not store.close_turn(turn.turn_id, NEXT)
    assert not store.drop_turn(turn.turn_id, "other")
    assert store.turn(turn.turn_id).reason == "abort"
    assert store.funnel().dropped == {"abort": 1}


def test_pending_turns_are_the_closed_ones_oldest_first(store, make_turn):
    turns = [make_turn() for _ in range(4)]
    for index in (2, 0):
        store.close_turn(turns[index].turn_id, NEXT)
    assert store.pending_turns() == [turns[0].turn_id, turns[2].turn_id]
    assert store.pending_turns(1) == [turns[0].turn_id]


def test_votes_replace_earlier_ones_and_keep_no_vote_apart_from_zero(store, make_turn):
    turn = make_turn()
    store.record_votes(turn.turn_id, [Vote("verdict", 0, 1), Vote("verdict", 1, 1), Vote("verdict", 2, 1)])
    votes = [Vote("verdict", 0, 0, raw="r", prompt_sha256="abc", seconds=0.5), Vote("verdict", 1, None, reason="unparsable")]
    hints = [Vote("hint", 0, 1, hint="do it")]
    store.record_votes(turn.turn_id, [*votes, *hints], [HintRecord("do it", 1, False, "too short")])
    assert store.votes(turn.turn_id, "verdict") == votes
    assert store.votes(turn.turn_id) == [*votes, *hints]
    assert store.hints(turn.turn_id) == [HintRecord("do it", 1, False, "too short")]


def test_idle_sessions_end_and_their_open_turns_say_no_next_state(store, make_turn):
    idle, closed = make_turn(), make_turn()
    store.close_turn(closed.turn_id, NEXT)
    seen = store.session(idle.session_id).last_seen_at
    assert store.end_idle_sessions(100, now=seen + 99) == 0
    assert store.end_idle_sessions(100, now=seen + 200) == 1
    assert store.turn(idle.turn_id).reason == "no_next_state"
    assert store.turn(closed.turn_id).state == "closed"
    assert store.session(idle.session_id).end_reason == "idle"
    assert store.end_idle_sessions(100, now=seen + 300) == 0


def test_threads_may_share_a_store(store, make_turn):
    turn, won = make_turn(), []
    threads = [threading.Thread(target=lambda: won.append(store.close_turn(turn.turn_id, NEXT))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_file_is_private_and_survives_reopening(store, make_turn):
    make_turn()
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o600
    store.close()
    assert Store(store.path).funnel().answered == 1


def test_another_schema_version_is_refused_by_number(store):
    store.connection.execute("PRAGMA user_version = 99")
    with pytest.raises(UserError, match=r"schema version 99.*version 1"):
        Store(store.path)


@pytest.mark.parametrize("content", [b"not sqlite at all, but long enough to be looked at " * 4, None])
def test_foreign_files_are_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "other.sqlite"
    if content is None:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE t (x)")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(UserError, match="is not a store"):
        Store(path)
    assert path.read_bytes() == before


def test_read_only_makes_and_writes_nothing(store, tmp_path, make_turn):
    with pytest.raises(UserError, match="There is no store"):
        Store(tmp_path / "absent.sqlite", read_only=True)
    assert not (tmp_path / "absent.sqlite").exists()
    turn = make_turn()
    reader = Store(store.path, read_only=True)
    assert reader.turn(turn.turn_id) is not None
    with pytest.raises(sqlite3.OperationalError):
        reader.drop_turn(turn.turn_id, "no")


def test_ids_of_clients_are_only_text(store):
    session = store.open_session(header_id="../../etc/passwd'; DROP TABLE turns; --")
    assert session.client_id == "../../etc/passwd'; DROP TABLE turns; --"
    assert session.session_id.isalnum()
