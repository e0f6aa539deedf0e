from __future__ import annotations

import pytest

from openclaw_core.rollout.dispatch import dispatch, drop_reason, majority
from openclaw_core.types import Candidate, Hint, SampleKind, Turn, Verdict

HINTS = (Hint("write capitals", 2), Hint("write it all in capitals"))


def make(value, hints, *, finish="stop", on_length="drop", flags=()):
    turn = Turn("t", "s", "l", (), (), {}, (1, 2), (3, 4, 5), (-0.1, -0.2, -0.3), finish, 6)
    return dispatch(
        turn,
        Verdict(value),
        hints,
        hinted_prompt_ids=lambda hint: (1, len(hint)),
        on_length=on_length,
        flags=flags,
        sample_id="x",
    )


@pytest.mark.parametrize(
    ("hinted", "value", "kind", "reward"),
    [
        (True, 1, SampleKind.OPD_RL, 1.0),
        (True, -1, SampleKind.OPD_RL, -1.0),
        (True, 0, SampleKind.OPD, 0.0),
        (True, None, SampleKind.OPD, 0.0),
        (False, 1, SampleKind.RL, 1.0),
        (False, -1, SampleKind.RL, -1.0),
    ],
)
def test_the_three_cases(hinted, value, kind, reward):
    sample = make(value, HINTS if hinted else ()).sample
    assert (sample.kind, sample.reward) == (kind, reward)
    hinted_candidates = tuple(Candidate((1, len(hint.text)), hint) for hint in HINTS)
    assert sample.candidates == (hinted_candidates if hinted else (Candidate((1, 2)),))
    assert all(c.token_ids(sample.response_ids)[-3:] == (3, 4, 5) for c in sample.candidates)
    assert (sample.loss_mask, sample.response_logprobs, sample.weight_version) == ((1, 1, 1), (-0.1, -0.2, -0.3), 6)


@pytest.mark.parametrize(("value", "reason"), [(0, "no_signal"), (None, "no_valid_vote")])
def test_nothing_to_learn_from(value, reason):
    result = make(value, ())
    assert (result.sample, result.reason) == (None, reason)


@pytest.mark.parametrize(
    ("finish", "on_length", "reason", "reward"),
    [
        ("abort", "keep", "abort", None),
        ("length", "drop", "length", None),
        ("length", "negative", None, -1.0),
        ("length", "keep", None, 1.0),
        ("stop", "drop", None, 1.0),
    ],
)
def test_finish_reasons(finish, on_length, reason, reward):
    result = make(1, HINTS, finish=finish, on_length=on_length)
    assert result.reason == drop_reason(finish, (), on_length) == reason
    assert (result.sample and result.sample.reward) == reward


def test_a_capped_reply_is_negative_without_any_vote():
    assert make(None, (), finish="length", on_length="negative").sample.reward == -1.0


@pytest.mark.parametrize("flag", ["id_out_of_range", "empty", "placeholder_reply", "placeholder_in_prompt", "side"])
def test_flags_that_forbid_training(flag):
    assert make(1, HINTS, flags=("prompt_drift", flag)).reason == flag
    assert make(1, HINTS, flags=("prompt_drift", "tool_call_in_reasoning")).sample is not None


@pytest.mark.parametrize(
    ("votes", "value"),
    [
        ((1, 1, -1), 1),
        ((-1, -1, 1), -1),
        ((0, 0, 1), 0),
        ((1, -1, None), 0),
        ((1, 0, -1), 0),
        ((1, 0), 0),
        ((-1, None, None), -1),
        ((None, None), None),
        ((), None),
        ((0, None), 0),
    ],
)
def test_majority_of_valid_votes(votes, value):
    verdict = majority(votes)
    assert (verdict.value, verdict.votes) == (value, votes)


def limited(hints, value, limit, *, anchored=False):
    """Candidates are 1 + len(hint) + 3 tokens long here, the un-hinted sequence 5."""
    turn = Turn("t", "s", "l", (), (), {}, (1, 2), (3, 4, 5), (-0.1, -0.2, -0.3), "stop", 6)
    return dispatch(
        turn,
        Verdict(value),
        hints,
        hinted_prompt_ids=lambda hint: (1, *map(ord, hint)),
        teacher_context=limit,
        anchored=anchored,
        sample_id="x",
    )


def test_a_candidate_too_long_for_the_teacher_is_left_out_and_the_others_stay():
    short, long = HINTS
    result = limited(HINTS, 1, len(short.text) + 4)
    assert [c.hint for c in result.sample.candidates] == [short]
    assert [(left.hint, left.tokens) for left in result.too_long] == [(long, len(long.text) + 4)]
    assert result.sample.candidates[0].hinted_prompt_ids == (1, *map(ord, short.text)), "nothing is cut"
    assert limited(HINTS, 1, len(long.text) + 4).too_long == ()
    assert [left.hint for left in limited(HINTS, 1, len(long.text) + 3).too_long] == [long], "a token more than fits"


@pytest.mark.parametrize(
    ("value", "anchored", "limit", "kind", "reason"),
    [
        (1, False, 5, SampleKind.RL, None),
        (1, True, 5, SampleKind.RL, None),
        (1, False, 4, SampleKind.RL, None),
        (1, True, 4, None, "too_long_for_teacher"),
        (0, False, 5, None, "too_long_for_teacher"),
        (None, False, 5, None, "too_long_for_teacher"),
    ],
)
def test_with_no_candidate_left_a_turn_is_one_without_hints(value, anchored, limit, kind, reason):
    result = limited(HINTS, value, limit, anchored=anchored)
    assert (result.sample and result.sample.kind, result.reason) == (kind, reason)
    assert len(result.too_long) == 2
    if kind:
        assert result.sample.candidates == (Candidate((1, 2)),)
