from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openclaw_core.dumps.describe import markdown
from openclaw_core.dumps.reader import DumpReader
from openclaw_core.dumps.summary import absent
from openclaw_core.dumps.writer import DumpWriter
from openclaw_core.errors import UsageError, UserError

make_step = runpy.run_path(str(Path(__file__).with_name("example.py")))["step"]


def test_the_page_is_made_from_the_schema():
    assert (Path(__file__).parents[2] / "docs" / "dumps.md").read_text() == markdown()


@pytest.fixture
def folder(tmp_path):
    writer = DumpWriter(tmp_path / "dumps")
    for number in (1, 2, 3):
        writer.write(make_step(number))
    return writer.folder


def test_what_is_written_is_read(folder):
    reader = DumpReader(folder)
    reader.check_files()
    assert reader.steps() == [1, 2, 3]
    assert reader.problems == []
    expected = make_step(2)
    got = reader.step(2)
    assert got.header == expected.header
    for a, b in zip(got.samples, expected.samples, strict=True):
        assert replace(a, tensors={}) == replace(b, tensors={})
        assert a.tensors.keys() == b.tensors.keys()
        for name in a.tensors:
            np.testing.assert_allclose(a.tensors[name], b.tensors[name], rtol=1e-5)
    assert reader.sample(2, "2b").sample_id == "2b-sample"
    assert reader.find("3c") == {"3c-sample": [3]}
    assert reader.lengths(1) == [9, 10, 11]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("overlap", np.zeros((2, 9)), "has C = 2, expected 3"),
        ("overlap", np.zeros((3, 10)), "has R = 10, expected 9"),
        ("weights", np.zeros((8, 4)), "has R = 8, expected 9"),
        ("entropy", np.zeros((9, 1)), "expected axes"),
        ("colour", np.zeros(9), "unknown tensors"),
    ],
)
def test_misfits_are_refused(tmp_path, name, value, says):
    dump = make_step(1)
    bad = replace(dump.samples[0], tensors={**dump.samples[0].tensors, name: value})
    with pytest.raises(ValueError, match=says):
        DumpWriter(tmp_path).write(replace(dump, samples=(bad,)))
    assert not list(tmp_path.iterdir())


def test_a_step_written_again_replaces_the_old_one(folder):
    again = make_step(2, seed=50, subset="teacher")
    DumpWriter(folder).write(again)
    reader = DumpReader(folder)
    assert reader.steps() == [1, 2, 3]
    assert reader.header(2).subset == "teacher"
    np.testing.assert_array_equal(reader.step(2).samples[0].tensors["response_ids"], again.samples[0].tensors["response_ids"])
    assert reader.problems == []


def test_half_written_last_line_is_told_and_the_step_recovered(folder):
    index = folder / "index.jsonl"
    index.write_bytes(index.read_bytes()[:-200])
    reader = DumpReader(folder)
    assert reader.steps() == [1, 2, 3]
    told = [str(problem) for problem in reader.problems]
    assert any("index.jsonl, line 3: half written, not JSON" in text for text in told)
    assert any("step-000003.safetensors: not in the index" in text for text in told)
    assert reader.step(3).header == make_step(3).header


def test_a_line_after_a_half_written_one_is_whole(folder):
    index = folder / "index.jsonl"
    index.write_bytes(index.read_bytes()[:-200])
    DumpWriter(folder).write(make_step(4))
    reader = DumpReader(folder)
    assert reader.steps() == [1, 2, 3, 4]
    assert [problem.line for problem in reader.problems if problem.file == "index.jsonl"] == [3]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[1, 2]", "holds a list"),
        ('{"schema": 99, "step": 7}', "schema 99, this program reads 1"),
        ('{"schema": 1, "step": 7}', "StepHeader has no subset"),
        ("not json at all", "not JSON"),
    ],
)
def test_bad_lines_are_told_with_their_number(folder, line, says):
    with (folder / "index.jsonl").open("a") as file:
        file.write(line + "\n")
    reader = DumpReader(folder)
    assert reader.steps() == [1, 2, 3]
    (problem,) = reader.problems
    assert problem.line == 4
    assert says in problem.what


def test_a_wrong_type_in_a_line_is_told(folder):
    lines = (folder / "index.jsonl").read_text().splitlines()
    record = json.loads(lines[0])
    record["step"] = "../../etc"
    (folder / "index.jsonl").write_text("\n".join([json.dumps(record), *lines[1:]]) + "\n")
    reader = DumpReader(folder)
    assert "step '../../etc', not of type int" in reader.problems[0].what
    assert reader.steps() == [1, 2, 3]


@pytest.mark.parametrize(("name", "value"), [("hints", 3), ("dropped_hints", "all"), ("verdict_votes", 1), ("spans", {"0": 4})])
def test_no_list_where_one_belongs_is_told(folder, name, value):
    lines = (folder / "index.jsonl").read_text().splitlines()
    record = json.loads(lines[0])
    record["samples"][1][name] = value
    (folder / "index.jsonl").write_text("\n".join([json.dumps(record), *lines[1:]]) + "\n")
    reader = DumpReader(folder)
    assert f"SampleDump has {name} " in reader.problems[0].what
    assert reader.steps() == [1, 2, 3]


def test_a_dump_from_before_dropped_hints_were_kept_knows_of_none(folder):
    lines = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    assert all(sample.dropped_hints == make_step(1).samples[0].dropped_hints for sample in DumpReader(folder).samples(1))
    for sample in lines[0]["samples"]:
        del sample["dropped_hints"]
    (folder / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reader = DumpReader(folder)
    assert reader.problems == []
    assert [sample.dropped_hints for sample in reader.samples(1)] == [None] * 3
    assert "hints that were dropped (the dump is from before they were kept)" in absent(reader.header(1), reader.sample(1, "1a"))
    assert not any("dropped" in text for text in absent(reader.header(2), reader.sample(2, "2a")))


def test_non_standard_numbers_are_read_as_absent(folder):
    index = folder / "index.jsonl"
    index.write_text(index.read_text().replace('"reward": -1.0', '"reward": NaN', 1))
    reader = DumpReader(folder)
    assert "1 non-finite numbers" in reader.problems[0].what
    assert np.isnan(reader.samples(1)[0].reward)


def test_corrupt_and_missing_files(folder):
    path = folder / "step-000002.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    (folder / "step-000001.safetensors").unlink()
    reader = DumpReader(folder)
    reader.check_files()
    told = "\n".join(map(str, reader.problems))
    assert "step-000002.safetensors: corrupt" in told
    assert "step 1: step-000001.safetensors is missing" in told
    with pytest.raises(UserError, match="corrupt"):
        reader.step(2)
    with pytest.raises(UserError, match="missing"):
        reader.sample(1, "1a")
    assert reader.step(3)


def test_without_an_index_everything_is_read_from_the_files(folder):
    (folder / "index.jsonl").unlink()
    reader = DumpReader(folder)
    assert reader.steps() == [1, 2, 3]
    assert "absent" in str(reader.problems[0])


def test_wrong_questions_have_useful_answers(folder, tmp_path):
    reader = DumpReader(folder)
    with pytest.raises(UsageError, match="Readable steps: 1 to 3"):
        reader.header(9)
    with pytest.raises(UsageError, match="2a-sample"):
        reader.sample(2, "2z")
    with pytest.raises(UsageError, match="begins the ids of 3 samples"):
        reader.sample(2, "2")
    with pytest.raises(UserError, match="There are no dumps"):
        DumpReader(tmp_path / "none")


def test_fillers_of_a_sample_without_an_opd_term_are_left_out(tmp_path):
    dump = make_step(1)
    first = dump.samples[0]
    own = {name: value for name, value in first.tensors.items() if not name.startswith("teacher")}
    DumpWriter(tmp_path).write(replace(dump, samples=(replace(first, kind="rl", tensors=own),)))
    kept = DumpReader(tmp_path).step(1).samples[0].tensors
    assert not {"overlap", "k_star", "weights", "support_ids"} & kept.keys()
    assert {"student_ids", "entropy", "engine_logprobs"} <= kept.keys()
