from __future__ import annotations

from openclaw_core.rollout.hints import accepted_hints, rank_hints
from openclaw_core.rollout.store import Vote
from openclaw_core.types import Hint


def votes(*hints: tuple[int | None, str | None]) -> list[Vote]:
    return [Vote("hint", index, value, hint) for index, (value, hint) in enumerate(hints)]


def test_shortest_first_stable_distinct_and_cut():
    given = votes((1, "bbbbbbbbbbbb"), (1, "a longer hint than that"), (1, " aaaaaaaaaaaa "), (1, "bbbbbbbbbbbb"))
    assert accepted_hints(rank_hints(given, 3)) == (
        Hint("bbbbbbbbbbbb", 2),
        Hint("aaaaaaaaaaaa"),
        Hint("a longer hint than that"),
    )
    records = rank_hints(given, 1)
    assert [r.text for r in records if r.accepted] == ["bbbbbbbbbbbb"]
    assert {r.reason for r in records if not r.accepted} == {"more than max_candidates"}


def test_more_than_ten_characters_after_stripping():
    given = votes((1, "  0123456789  "), (1, "0123456789x"))
    assert accepted_hints(rank_hints(given, 3)) == (Hint("0123456789x"),)
    assert rank_hints(given, 3)[1].reason == "too short"


def test_only_decided_hints_count():
    given = votes((-1, "never do that again"), (None, None), (0, "something about it"))
    assert accepted_hints(rank_hints(given, 3)) == ()
    assert {r.reason for r in rank_hints(given, 3)} == {"not decided for"}
    assert rank_hints([Vote("verdict", 0, 1)], 3) == []
