from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.dumps.anomalies import anomalies
from openclaw_core.dumps.inspect import Filters, dumps_folder, list_samples, list_steps, show_sample, step_of_sample, view_record
from openclaw_core.dumps.page import step_page
from openclaw_core.dumps.position import Positions, choose_positions
from openclaw_core.dumps.reader import DumpReader
from openclaw_core.dumps.selection import expected_k_star, gaps, spans, why_candidate, why_position
from openclaw_core.dumps.summary import summarise
from openclaw_core.dumps.tokens import TokenTexts
from openclaw_core.dumps.writer import DumpWriter, checked_tensors
from openclaw_core.errors import UsageError
from openclaw_core.track.jsonl import dumps

make_step = runpy.run_path(str(Path(__file__).with_name("example.py")))["step"]
NO_TEXTS = TokenTexts(None)
SUBSETS = ("student", "teacher", "overlap")
SELECTIONS = ("shortest", "token_optimal", "sequence_optimal", "signal_optimal")


def first(**options):
    """Header and first sample as a reader would give them."""
    dump = make_step(**options)
    return dump.header, replace(dump.samples[0], tensors=checked_tensors(dump.samples[0]))


def changed(sample, **tensors):
    kept = {name: value for name, value in {**sample.tensors, **tensors}.items() if value is not None}
    return replace(sample, tensors=kept)


@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_right_dumps_have_no_anomalies_and_the_rule_is_found_again(subset, selection):
    header, sample = first(subset=subset, selection=selection, spans=((0, 4), (5, 9)))
    assert anomalies(header, sample) == []
    np.testing.assert_array_equal(expected_k_star(header, sample), sample.tensors["k_star"])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(SELECTIONS), st.integers(1, 5), st.integers(1, 7))
def test_every_position_agrees_with_the_arrays(seed, selection, k, candidates):
    header, sample = first(seed=seed, selection=selection, k=k, candidates=(candidates,))
    for t in range(sample.length):
        one = Positions(header, sample, NO_TEXTS).at(t)
        assert [entry.token.id for entry in one.student] == list(sample.tensors["student_ids"][t])
        for candidate in one.candidates:
            shared = {entry.token.id for entry in candidate.top} & {entry.token.id for entry in one.student}
            assert candidate.overlap == len(shared) == sum(entry.shared for entry in candidate.top)
        assert [candidate.k for candidate in one.candidates if candidate.chosen] == [sample.tensors["k_star"][t]]
        assert one.signal == pytest.approx(sum(abs(entry.advantage) for entry in one.support))
        assert one.student_mass == pytest.approx(sum(np.exp(entry.student_logprob) for entry in one.support))
        assert one.sampling_logprob == sample.tensors["sampling_logprobs"][t]
        assert why_position(header, sample, t, spans(header, sample))


def test_the_engines_temperature_is_told_where_it_is_another():
    header, sample = first()
    for engine, told in ((header.temperature, False), (0.123, True)):
        one = Positions(replace(header, temperatures={"engine": engine}), sample, NO_TEXTS).at(0)
        assert (one.sampling_logprob is not None) is told


def test_the_summary_is_the_mean_of_the_positions():
    header, sample = first(selection="token_optimal")
    summary = summarise(header, sample)
    views = [Positions(header, sample, NO_TEXTS).at(t) for t in range(sample.length)]
    assert summary.signal == pytest.approx(np.mean([one.signal for one in views]))
    assert summary.student_mass == pytest.approx(np.mean([one.student_mass for one in views]))
    assert summary.teacher_mass == pytest.approx(np.mean([one.teacher_mass for one in views]))
    assert sum(one.chosen_share for one in summary.candidates) == pytest.approx(1)
    for one in summary.candidates:
        assert one.mean_overlap == pytest.approx(np.mean([view.candidates[one.k].overlap for view in views]))
        assert one.gap == pytest.approx(np.mean([view.candidates[one.k].gap for view in views]))
    assert summary.clipped_share == pytest.approx(np.mean([entry.clipped for view in views for entry in view.support]))
    assert summary.engine_gap == pytest.approx(0.001, abs=1e-5)
    by_place = [quarter for quarter in summary.quarters if quarter.by == "position"]
    assert sum(quarter.positions for quarter in by_place) == sample.length


@pytest.mark.parametrize("subset", SUBSETS)
def test_masses_of_the_chosen_candidate_are_those_of_the_support(subset):
    header, sample = first(subset=subset, selection="sequence_optimal")
    k = int(sample.tensors["k_star"][0])
    summary = summarise(header, sample)
    assert summary.candidates[k].teacher_mass == pytest.approx(summary.teacher_mass, rel=1e-5)
    if subset == "teacher":
        assert summary.candidates[k].student_mass is None
    else:
        assert summary.candidates[k].student_mass == pytest.approx(summary.student_mass, rel=1e-5)


def test_signal_optimal_sets_quiet_candidates_aside():
    header, sample = first(selection="signal_optimal")
    (span,) = spans(header, sample)
    loudest = max(span.gap)
    assert set(span.set_aside) == {k for k, gap in enumerate(span.gap) if gap < 0.5 * loudest}
    assert span.set_aside
    assert "set aside: G" in why_candidate(header, sample, span.set_aside[0])
    np.testing.assert_allclose(span.gap, gaps(sample).mean(1))


def test_ties_go_to_the_lower_number_and_are_told():
    header, sample = first(selection="sequence_optimal", candidates=(2,))
    same = np.broadcast_to(sample.tensors["overlap"][:1], sample.tensors["overlap"].shape).copy()
    tied = changed(sample, overlap=same, k_star=np.zeros(sample.length, np.int32))
    assert spans(header, tied)[0].tied == (1,)
    assert "tied with 1: the lowest number wins" in why_candidate(header, tied, 0)
    assert "not chosen: tied" in why_candidate(header, tied, 1)
    tokenwise = replace(header, selection="token_optimal")
    assert "0, 1 tie: the lowest number wins" in why_position(tokenwise, tied, 0, [])
    assert "9 ties lost" in why_candidate(tokenwise, tied, 1)


def test_positions_outside_every_span_are_taught_by_the_first_candidate():
    header, sample = first(selection="sequence_optimal", spans=((0, 3),))
    assert why_position(header, sample, 5, spans(header, sample)) == "outside every step span: candidate 0"
    assert list(expected_k_star(header, sample)[3:]) == [0] * (sample.length - 3)


def one_changed(array, index, value):
    array = array.copy()
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("name", "index", "value", "says"),
    [
        ("student_ids", (2, 0), 999, "ids above 47, the last real id"),
        ("response_ids", (3,), 48, "ids above 47"),
        ("weights", (1, 0), np.nan, "non-finite"),
        ("advantages", (1, 0), 9.0, "A other than d w"),
        ("weights", (4, 1), 5.0, "w that don't sum to 1"),
        ("k_star", (0,), 7, "choices outside the 3 candidates"),
        ("overlap", (0, 0), 9, "overlaps outside 0 to 4"),
        ("student_logprobs", (0, 3), np.inf, "non-finite"),
    ],
)
def test_impossible_numbers_are_counted_and_placed(name, index, value, says):
    header, sample = first(selection="token_optimal")
    broken = changed(sample, **{name: one_changed(sample.tensors[name], index, value)})
    named = [one for one in anomalies(header, broken) if says in one.what]
    assert [(one.tensor, one.count, one.first[: len(index)]) for one in named] == [(name, 1, index[: len(named[0].first)])]


def test_duplicates_wrong_choices_and_too_wide_top_k():
    header, sample = first(selection="token_optimal")
    ids = one_changed(sample.tensors["student_ids"], (2, 1), sample.tensors["student_ids"][2, 0])
    assert any("id twice" in one.what and one.first == (2,) for one in anomalies(header, changed(sample, student_ids=ids)))
    other = (sample.tensors["k_star"] + 1) % 3
    assert any("token_optimal would not make" in one.what for one in anomalies(header, changed(sample, k_star=other)))
    assert any("top-K of 4 ids over a vocabulary of 3" in one.what for one in anomalies(replace(header, vocab=3), sample))
    assert any("last real id" in one.what for one in anomalies(header, sample, last_id=10))


def test_absent_inputs_are_told_and_the_rest_is_computed():
    header, sample = first()
    bare = replace(
        sample, kind="rl", tensors={name: sample.tensors[name] for name in ("response_ids", "loss_mask", "sampled_logprobs")}
    )
    summary = summarise(header, bare)
    assert any("rl sample with opd_on_rl_only: skip" in text for text in summary.absent)
    assert summary.candidates[0].scored is False
    assert summary.candidates[0].mean_overlap is None
    one = Positions(header, bare, NO_TEXTS).at(0)
    assert (one.k_star, one.student, one.candidates, one.support) == (None, [], [], [])
    assert one.sampled_logprob is not None
    assert one.sampling_logprob is None
    assert anomalies(header, bare) == []
    without = changed(sample, teacher_at_student=None)
    assert summarise(header, without).candidates[0].gap is None
    assert any("doesn't read it" in text for text in summarise(header, without).absent)


def test_only_the_first_candidate_may_be_scored():
    header, sample = first(selection="shortest")
    kept = {name: value[:1] for name, value in sample.tensors.items() if name.startswith("teacher") or name == "overlap"}
    summary = summarise(header, changed(sample, **kept))
    assert [one.scored for one in summary.candidates] == [True, False, False]
    assert "only the first counts" in summary.candidates[1].why


def test_the_tail_bin_is_shown_as_the_rest():
    header, sample = first()
    wide = {
        name: np.concatenate([sample.tensors[name], np.full((sample.length, 1), filler, sample.tensors[name].dtype)], axis=1)
        for name, filler in {
            "support_ids": -1,
            "support_mask": 1,
            "support_student": -1,
            "support_teacher": -2,
            "weights": 0,
        }.items()
    }
    one = Positions(replace(header, tail="bin"), changed(sample, **wide, differences=None, advantages=None), NO_TEXTS).at(0)
    assert one.support[-1].token.text == "<rest>"
    assert one.support[-1].difference is None


def test_positions_are_filtered_and_sorted():
    header, sample = first(selection="token_optimal")
    by_signal = choose_positions(header, sample, sort="signal")
    pull = np.abs(sample.tensors["advantages"]).sum(1)
    assert list(pull[by_signal]) == sorted(pull, reverse=True)
    assert choose_positions(header, sample, start=2, end=5) == [2, 3, 4]
    most = choose_positions(header, sample, min_overlap=4)
    assert all(sample.tensors["overlap"][:, t].max() == 4 for t in most)
    assert choose_positions(header, changed(sample, overlap=None), min_overlap=1) == []


@pytest.fixture
def reader(tmp_path):
    writer = DumpWriter(tmp_path / "dumps")
    for number in (1, 2):
        dump = make_step(number)
        samples = (replace(dump.samples[0], kind="opd", reward=0.0), *dump.samples[1:])
        writer.write(replace(dump, samples=samples))
    return DumpReader(writer.folder)


def test_lists_and_filters(reader, tmp_path):
    assert [(row.step, row.samples, row.opd_rl, row.opd) for row in list_steps(reader)] == [(1, 3, 2, 1), (2, 3, 2, 1)]
    assert len(list_samples(reader, 1, Filters())) == 3
    assert [row.sample_id for row in list_samples(reader, 1, Filters(kind="opd"))] == ["1a-sample"]
    assert [row.candidates for row in list_samples(reader, 1, Filters(hint_contains="PLEASE WRITE"))] == [3, 2]
    assert [row.dropped_hints for row in list_samples(reader, 1, Filters(hint_contains="loudly"))] == [2, 2, 2]
    overlaps = [row.mean_overlap for row in list_samples(reader, 1, Filters())]
    assert len(list_samples(reader, 1, Filters(min_overlap=max(overlaps)))) == 1
    assert step_of_sample(reader, "2b") == 2
    assert dumps_folder(tmp_path) == tmp_path / "dumps"
    assert dumps_folder(tmp_path / "dumps") == tmp_path / "dumps"
    with pytest.raises(UsageError, match="has no position 99"):
        show_sample(reader, 1, "1a", NO_TEXTS, start=99)


def test_the_page_holds_its_data_and_nothing_can_break_out_of_it(tmp_path):
    dump = make_step(1)
    evil = "</script><script>alert(1)</script>"
    hints, left = (
        tuple(replace(hint, text=evil) for hint in some) for some in (dump.samples[0].hints, dump.samples[0].dropped_hints)
    )
    evil_one = replace(dump.samples[0], hints=hints, dropped_hints=left, next_state=evil)
    DumpWriter(tmp_path).write(replace(dump, samples=(evil_one, *dump.samples[1:])))
    reader = DumpReader(tmp_path)
    page = step_page(reader, 1, NO_TEXTS, Filters())
    assert page.count("</script>") == 2
    assert "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)="', page)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert data["samples"][0]["sample"]["next_state"] == evil
    assert data["samples"][0]["sample"]["dropped_hints"][0]["text"] == evil
    assert data["samples"][1] == json.loads(dumps(view_record(show_sample(reader, 1, "1b", NO_TEXTS))))
    with pytest.raises(UsageError, match="passes the filters"):
        step_page(reader, 1, NO_TEXTS, Filters(kind="rl"))
