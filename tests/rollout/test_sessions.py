from __future__ import annotations

import pytest

from openclaw_core.rollout.sessions import canonical, continuation_key, has_placeholder, place_request, reaction
from openclaw_core.rollout.store import NewTurn
from openclaw_core.types import Turn


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


@pytest.fixture
def reply_to(store):
    """Places a request, closes what it closes, and stores a reply."""
    numbers = iter(range(1000))

    def reply(messages, text, **ids):
        place = place_request(store, messages, **ids)
        turn_id = f"t{next(numbers)}"
        if place.closes:
            store.close_turn(place.parent_turn_id, place.next_state, next_turn_id=turn_id)
        turn = Turn(
            turn_id, place.session.session_id, place.lineage_id, tuple(messages), (), answer(text), (1,), (2,), (-0.1,), "stop", 0
        )
        store.add_turn(NewTurn(turn, text, continuation_key(messages, turn.reply), parent_turn_id=place.parent_turn_id))
        return place, turn

    return reply


def test_the_next_request_is_the_next_state(store, reply_to):
    messages = [user("a")]
    _, first = reply_to(messages, "b", header_id="S")
    place, second = reply_to([*messages, answer("b"), user("c")], "d", header_id="S")
    assert (place.parent_turn_id, place.lineage_id) == (first.turn_id, first.lineage_id)
    record = store.turn(first.turn_id)
    assert (record.state, record.next_state, record.next_turn_id) == ("closed", (user("c"),), second.turn_id)


def test_other_lineages_of_a_session_close_nothing(store, reply_to):
    messages = [{"role": "system", "content": "S"}, user("a")]
    _, first = reply_to(messages, "b", header_id="S")
    side, _ = reply_to([{"role": "system", "content": "Summarise."}, user("a"), answer("b"), user("c")], "sum", header_id="S")
    assert side.parent_turn_id is None
    assert store.turn(first.turn_id).state == "open"
    main, _ = reply_to([*messages, answer("b"), user("c")], "d", header_id="S")
    assert main.parent_turn_id == first.turn_id
    assert store.turn(first.turn_id).next_state == (user("c"),)


def test_side_requests_close_nothing(store, reply_to):
    _, first = reply_to([user("a")], "b", header_id="S")
    place = place_request(store, [user("a"), answer("b"), user("summarise")], header_id="S", side=True)
    assert (place.closes, place.parent_turn_id) == (False, first.turn_id)
    assert place.lineage_id != first.lineage_id


def test_sessions_of_other_ids_are_out_of_reach(store, reply_to):
    _, first = reply_to([user("a")], "b", header_id="S")
    for ids in ({"header_id": "T"}, {"user_id": "S"}, {}):
        place = place_request(store, [user("a"), answer("b"), user("c")], **ids)
        assert (place.parent_turn_id, place.closes) == (None, False), ids
    assert store.turn(first.turn_id).state == "open"


def test_anonymous_clients_are_found_by_their_prefix(store, reply_to):
    first_place, first = reply_to([user("a")], "b")
    other_place, _ = reply_to([user("a")], "other reply")
    assert first_place.session.session_id != other_place.session.session_id
    place, _ = reply_to([user("a"), answer("b"), user("c")], "d")
    assert place.session.session_id == first_place.session.session_id
    assert place.parent_turn_id == first.turn_id


def test_what_clients_do_to_a_reply_does_not_part_it():
    sent = answer(
        "b",
        reasoning_content="hm",
        tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    )
    back = {
        "role": "assistant", "content": [{"type": "text", "text": "b "}], "refusal": None, "name": None,
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }  # fmt: skip
    assert canonical(sent) == canonical(back)
    assert canonical(answer(None)) == canonical(answer(""))
    assert canonical(sent) != canonical(answer("b"))
    assert canonical(user("b")) != canonical(answer("b"))


def test_tool_results_are_the_next_state_together(store, reply_to):
    _, first = reply_to([user("a")], "b", header_id="S")
    results = [{"role": "tool", "tool_call_id": str(i), "content": f"r{i}"} for i in range(2)]
    place, _ = reply_to([user("a"), answer("b"), *results], "c", header_id="S")
    assert place.next_state == tuple(results)
    assert store.turn(first.turn_id).state == "closed"


def test_the_reaction_ends_where_somebody_answers_it():
    assert reaction([user("c"), answer("another model"), user("d")]) == (user("c"),)
    assert reaction([{"role": "system", "content": "x"}]) == ()


def test_a_prefilled_reply_is_no_reaction(store, reply_to):
    _, first = reply_to([user("a")], "b", header_id="S")
    place = place_request(store, [user("a"), answer("b")], header_id="S")
    assert (place.closes, place.parent_turn_id) == (False, None)
    assert store.turn(first.turn_id).state == "open"


def test_a_retry_branches_and_leaves_the_first_reaction(store, reply_to):
    messages = [user("a")]
    _, first = reply_to(messages, "b", header_id="S")
    reply_to([*messages, answer("b"), user("c")], "d", header_id="S")
    place, _ = reply_to([*messages, answer("b"), user("edited")], "e", header_id="S")
    assert (place.parent_turn_id, place.closes) == (first.turn_id, False)
    assert place.lineage_id != first.lineage_id
    assert store.turn(first.turn_id).next_state == (user("c"),)


def test_of_equal_replies_the_open_one_is_continued(store, reply_to):
    _, first = reply_to([user("a")], "b", header_id="S")
    _, retried = reply_to([user("a")], "b", header_id="S")
    reply_to([user("a"), answer("b"), user("c")], "d", header_id="S")
    assert store.turn(retried.turn_id).state == "closed"
    reply_to([user("a"), answer("b"), user("c2")], "d", header_id="S")
    assert store.turn(first.turn_id).next_state == (user("c2"),)


def test_the_longest_prefix_counts(store, reply_to):
    messages = [user("a")]
    reply_to(messages, "b", header_id="S")
    messages += [answer("b"), user("c")]
    _, second = reply_to(messages, "d", header_id="S")
    place = place_request(store, [*messages, answer("d"), user("e")], header_id="S")
    assert place.parent_turn_id == second.turn_id


def test_placeholders_are_found_inside_quotes():
    assert has_placeholder(["you said: 'agent couldn't generate a response'?"])
    assert not has_placeholder(["the agent responded"])
