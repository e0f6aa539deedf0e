"""The teacher's benchmark: its samples, its counts, and a page that says what the records say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.teacher import page as room
from benchmarks.teacher.workload import SCENARIOS, SHAPES, make_samples
from openclaw_core.models.megatron.packing import SequenceIds
from openclaw_core.models.megatron.prefix import added_tokens
from openclaw_core.teacher.schedule import published_tokens, whole_tokens

RESULTS = Path(room.__file__).with_name("results.json")
TOLD = RESULTS.with_name("beside.json")
BESIDE = json.loads(TOLD.read_text()) if TOLD.is_file() else None


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_samples_have_the_lengths_and_shared_prefixes_that_are_claimed(scenario):
    shape = replace(SHAPES["small"], history=400, hint=10, reply=20)
    samples = make_samples(shape, scenario)
    assert [len(s.candidates) for s in samples[:4]] == [1, 2, 3, 1]
    assert max(len(s.prompt_ids) for s in samples) == 400
    forwarded = sum(added_tokens([SequenceIds(c.hinted_prompt_ids, s.response_ids) for s in samples for c in s.candidates]))
    whole, published = whole_tokens(samples), published_tokens(samples)
    share = {"last message": (0.5, 0.6), "before tool results": (0.7, 0.8), "four turns": (0.2, 0.4), "system message": (1, 1)}
    low, high = share[scenario.name]
    assert low <= forwarded / whole <= high
    assert whole < published


def test_the_page_is_the_one_of_the_records():
    records = json.loads(RESULTS.read_text())
    assert RESULTS.with_name("README.md").read_text() == room.page(records, BESIDE)
    records["small"]["scenarios"]["last message"]["shared"]["seconds"] = 1e-3
    assert "| yes |" in room.page(records, BESIDE)
