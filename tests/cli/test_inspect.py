from __future__ import annotations

import io
import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer, decoders, models
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_cli.candidates_text import sample_text, samples_text, steps_text, visible
from openclaw_core.dumps.inspect import Filters, list_samples, list_steps, show_sample
from openclaw_core.dumps.reader import DumpReader
from openclaw_core.dumps.schema import StepDump
from openclaw_core.dumps.tokens import TokenTexts
from openclaw_core.dumps.writer import DumpWriter
from openclaw_core.run.runs import create_run

make_step = runpy.run_path(str(Path(__file__).parents[1] / "dumps" / "example.py"))["step"]


@pytest.fixture
def run(tmp_path):
    """A run with three steps: each subset and another selection, one sample with an id that no tokenizer has."""
    run = create_run(tmp_path, "demo", steps=3)
    tokenizer = Tokenizer(models.BPE({chr(33 + number): number for number in range(48)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(run.weights / "tokenizer.json"))
    writer = DumpWriter(run.dumps)
    cells = (("student", "sequence_optimal"), ("teacher", "token_optimal"), ("overlap", "signal_optimal"))
    for number, (subset, selection) in enumerate(cells, start=1):
        dump = make_step(number, subset=subset, selection=selection, length=30)
        first = dump.samples[0]
        first.tensors["response_ids"][4] = 151700
        writer.write(replace(dump, samples=(replace(first, kind="opd", reward=0.0), *dump.samples[1:])))
    return run


def call(*args):
    return CliRunner().invoke(app, ["inspect-candidates", *map(str, args)])


def as_json(*args):
    done = call(*args, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout, parse_constant=lambda text: pytest.fail(text))


def test_steps_then_samples_then_one_sample(run):
    done = call(run.path)
    assert done.exit_code == 0
    assert "reverse_kl, teacher / token_optimal, K 4, diff clip 1" in done.stdout
    done = call(run.path, "--step", 2)
    assert all(name in done.stdout for name in ("2a-sample", "2b-sample", "2c-sample", "Use capital letters."))
    done = call(run.path, "--sample", "2a")
    text = " ".join(done.stdout.split())
    assert "2a-sample of step 2" in text
    assert 'rests on user: "In capital letters, please."' in text
    assert "largest O at" in text
    assert "20 of 30 positions" in text
    assert "w is renormalised over the support" in text
    assert "<id 151700> !" in text
    assert "1 ids above 47" in text
    assert done.stderr == ""


def test_a_divergence_without_advantages_is_named_and_they_are_absent(run):
    dump = make_step(4, length=30)
    gone = ("weights", "differences", "advantages")
    samples = [replace(s, tensors={k: v for k, v in s.tensors.items() if k not in gone}) for s in dump.samples]
    DumpWriter(run.dumps).write(StepDump(replace(dump.header, divergence="jensen_shannon", diff_clip=0.0), tuple(samples)))
    assert "jensen_shannon, student / sequence_optimal, K 4, no diff clip" in call(run.path).stdout
    done = call(run.path, "--sample", "4a", "--position", 7)
    text = " ".join(done.stdout.split())
    assert (done.exit_code, done.stderr) == (0, "")
    assert "divergence jensen_shannon" in text
    assert "absent w, d and A (divergence jensen_shannon: see the pull)" in text
    assert "w is renormalised" not in text
    assert "signal -" not in text
    assert re.search(r"support +q +p +pull *$", done.stdout, re.MULTILINE)
    signals = [one["signal"] for one in as_json(run.path, "--sample", "4a", "--sort", "signal", "--limit", 3)["positions"]]
    assert signals == sorted(signals, reverse=True)
    assert min(signals) > 0
    assert re.search(r"[+-]0\.\d{3} ", call(run.path, "--sample", "4a").stdout), "what pulls most"
    DumpWriter(run.dumps).write(StepDump(replace(dump.header, step=5, divergence="earth_mover"), tuple(samples)))
    refused = call(run.path, "--sample", "4a", "--step", 5, "--sort", "signal")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "4a-sample has no signal to sort by: its dump holds no advantages, and none can be found for div" in refused.stderr
    assert call(run.path, "--sample", "4a").exit_code == 0
    assert call(run.path, "--step", 4).exit_code == 0
    page = run.path / "page.html"
    assert call(run.path, "--step", 4, "--html", page).exit_code == 0
    assert '"divergence":"jensen_shannon"' in page.read_text().replace(": ", ":")


def test_one_position_in_full(run):
    done = call(run.path, "--sample", "3a", "--position", 7)
    assert done.exit_code == 0
    assert "t 7" in done.stdout
    assert all(f"teacher {k}" in done.stdout for k in range(3))
    assert "t 8" not in done.stdout
    assert "at the engine's temperature -" in " ".join(done.stdout.split())


@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_wider_than_100_columns(run, full):
    reader, texts = DumpReader(run.dumps), TokenTexts(run.tokenizer())
    stream = io.StringIO()
    console = Console(file=stream, width=100, highlight=False)
    steps_text(list_steps(reader), console)
    for step in reader.steps():
        samples_text(reader.header(step), list_samples(reader, step, Filters(), texts.last_id), console)
        sample_text(show_sample(reader, step, f"{step}a", texts), console, detail=full)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert not any("…" in line for line in lines if line.startswith("  support"))


def test_json_holds_every_position_and_agrees_with_the_dump(run):
    body = as_json(run.path, "--step", 3, "--sample", "3a-sample")
    sample = DumpReader(run.dumps).sample(3, "3a")
    assert body["header"]["subset"] == "overlap"
    assert [one["k_star"] for one in body["positions"]] == sample.tensors["k_star"].tolist()
    for one in body["positions"]:
        t = one["t"]
        overlaps = [candidate["overlap"] for candidate in one["candidates"]]
        assert overlaps == sample.tensors["overlap"][:, t].tolist()
        assert len(one["support"]) == sample.tensors["support_mask"][t].sum()
    assert body["positions"][4]["token"] == {"id": 151700, "text": "<id 151700>", "flagged": True}
    assert body["sample"]["hints"][0]["next_state"] == "In capital letters, please."


def test_hints_that_were_dropped_are_told_with_the_reason(run):
    why = "too_long_for_teacher: 5210 tokens with the reply, the teacher reads 4096"
    text = " ".join(call(run.path, "--sample", "2a").stdout.split())
    assert f'dropped {why}; 1 vote: "Write LOUDLY' in text
    assert "of 12000 characters" in text
    assert 'dropped too short; 2 votes: "Be nice."' in text
    hints = as_json(run.path, "--sample", "2a")["sample"]["dropped_hints"]
    assert [(hint["reason"], hint["why"], hint["tokens"]) for hint in hints] == [
        ("too_long_for_teacher", why, 5210),
        ("too short", "too short", None),
    ]
    assert [row["dropped_hints"] for row in as_json(run.path, "--step", 2)["samples"]] == [2, 2, 2]
    page = run.path / "page.html"
    assert call(run.path, "--step", 2, "--html", page).exit_code == 0
    assert why in page.read_text()


def test_filters(run):
    names = [row["sample_id"] for row in as_json(run.path, "--step", 1, "--kind", "opd")["samples"]]
    assert names == ["1a-sample"]
    assert [row["candidates"] for row in as_json(run.path, "--step", 1, "--hint-contains", "please WRITE")["samples"]] == [3, 2]
    assert as_json(run.path, "--step", 1, "--min-overlap", 4.1)["samples"] == []
    positions = as_json(run.path, "--sample", "1a", "--positions", "5:25", "--sort", "signal", "--limit", 6)["positions"]
    signals = [one["signal"] for one in positions]
    assert len(signals) == 6
    assert signals == sorted(signals, reverse=True)
    assert all(5 <= one["t"] < 25 for one in positions)


def test_samples_of_all_steps_are_found_in_the_index_alone(run):
    for path in run.dumps.glob("*.safetensors"):
        path.write_bytes(b"never read")
    body = as_json(run.path, "--hint-contains", "please WRITE")
    assert [(one["step"], one["sample_id"]) for one in body["samples"]] == [
        (step, f"{step}{letter}-sample") for step in (1, 2, 3) for letter in "ac"
    ]
    assert {hint for one in body["samples"] for hint in one["hints"]} == {"Please write in capital letters."}
    assert (body["matching_samples"], body["searched_steps"]) == (6, 3)
    assert [one["step"] for one in as_json(run.path, "--kind", "opd")["samples"]] == [1, 2, 3]
    dropped = as_json(run.path, "--hint-contains", "be nice", "--kind", "opd")["samples"]
    assert [(one["hints"], one["dropped_hints"]) for one in dropped] == [([], ["Be nice."])] * 3
    done = call(run.path, "--hint-contains", "be nice", "--limit", 2)
    assert done.stdout.count("dropped: Be nice.") == 2
    assert "9 samples pass in the index of 3 steps, the first 2 are shown (--limit 0 for all)." in done.stderr
    assert call(run.path, "--hint-contains", "be nice", "--quiet").stdout.splitlines()[:2] == ["1\t1a-sample", "1\t1b-sample"]
    nothing = call(run.path, "--hint-contains", "no such text")
    assert (nothing.exit_code, "0 samples pass in the index of 3 steps." in nothing.stderr) == (0, True)


def test_quiet_gives_names_alone(run):
    assert call(run.path, "--quiet").stdout == "1\n2\n3\n"
    assert call(run.path, "--step", 1, "--quiet").stdout.split() == ["1a-sample", "1b-sample", "1c-sample"]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--step", 9], 2, "Readable steps: 1 to 3"),
        (["--sample", "zzz"], 2, "No readable step has a sample"),
        (["--step", 1, "--sample", "2a"], 2, "Step 1 has no sample"),
        (["--position", 3], 2, "Name it with --sample"),
        (["--sample", "1a", "--position", 3, "--positions", "1:2"], 2, "exclude each other"),
        (["--sample", "1a", "--positions", "9:3"], 2, "is no range"),
        (["--sample", "1a", "--positions", "x"], 2, "is no range"),
        (["--sample", "1a", "--position", 500], 2, "has no position 500"),
        (["--kind", "gold"], 2, "kind"),
        (["--html", "page.html"], 2, "needs a step"),
        (["--step", 1, "--tokenizer", "/nowhere"], 2, "--tokenizer /nowhere doesn't exist"),
    ],
)
def test_wrong_questions_end_with_a_sentence(run, args, code, says):
    done = call(run.path, *args)
    assert done.exit_code == code
    assert says in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_beginning_that_several_samples_have_is_refused_with_their_ids(run):
    DumpWriter(run.dumps).write(replace((dump := make_step(4, length=30)), samples=tuple(
        replace(sample, sample_id=name) for sample, name in zip(dump.samples, ("2a-again", "4", "4b-sample"), strict=True)
    )))  # fmt: skip
    done = call(run.path, "--sample", "2a")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'2a' begins the ids of 2 samples. Give more of one: 2a-sample (step 2), 2a-again (step 4)." in done.stderr
    assert "2a-sample of step 2" in call(run.path, "--sample", "2a", "--step", 2).stdout
    within = call(run.path, "--sample", "2", "--step", 2)
    assert within.exit_code == 2
    assert "begins the ids of 3 samples. Give more of one: 2a-sample (step 2), 2b-sample (step 2)" in within.stderr
    assert "4 of step 4" in call(run.path, "--sample", "4").stdout, "a whole id is never ambiguous"


def test_a_folder_that_is_no_run(tmp_path):
    assert call(tmp_path / "none").exit_code == 2
    done = call(tmp_path)
    assert done.exit_code == 1
    assert "There are no dumps" in done.stderr


def test_broken_dumps_are_shown_as_far_as_they_go(run):
    index = run.dumps / "index.jsonl"
    index.write_bytes(index.read_bytes()[:-300])
    (run.dumps / "step-000002.safetensors").write_bytes(b"gone")
    done = call(run.path)
    assert done.exit_code == 1
    assert "overlap / signal_optimal" in done.stdout
    assert "index.jsonl, line 3: half written" in done.stderr
    assert "step-000002.safetensors: corrupt" in done.stderr
    lenient = call(run.path, "--lenient")
    assert lenient.exit_code == 0
    assert "warning: index.jsonl, line 3" in lenient.stderr
    assert call(run.path, "--step", 2).exit_code == 1
    problems = json.loads(call(run.path, "--json").stdout)["problems"]
    assert any("line 3" in problem for problem in problems)


def test_without_tokenizer_and_run_the_ids_are_shown(run):
    done = call(run.dumps, "--sample", "1a")
    assert done.exit_code == 0
    assert "<id 151700>" in done.stdout
    assert "tokens are shown as ids" in done.stderr
    with_tokenizer = call(run.dumps, "--sample", "1a", "--tokenizer", run.weights)
    assert "<id 151700> !" in with_tokenizer.stdout


def test_a_page_is_written(run, tmp_path):
    page = tmp_path / "page.html"
    done = call(run.path, "--step", 1, "--html", page)
    assert done.exit_code == 0
    assert "1a-sample" in page.read_text()


def test_control_characters_never_reach_the_terminal():
    assert visible("a\x1b[31mb\n\u202ec") == "a\\x1b[31mb\\n\\u202ec"
    assert visible("abcdef", 4) == "abc…"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--min-overlap", 1], "--min-overlap chooses among"),
        (["--kind", "opd", "--min-overlap", 1], "--min-overlap chooses among the samples of a step, by its tensors"),
        (["--hint-contains", "x", "--sort", "signal"], "--sort: that is of the positions of one sample"),
        (["--limit", 3], "--limit: that is of the positions of one sample"),
        (["--hint-contains", "x", "--sample", "2a"], "--sample names one, which leaves --hint-contains no choice"),
        (["--step", 2, "--full", "--limit", 3], "--limit and --full"),
        (["--step", 2, "--sort", "signal"], "Name it with --sample"),
        (["--sample", "2a", "--html", "x.html", "--limit", 3], "--html takes no --limit"),
        (["--html", "x.html"], "--html needs a step or a sample"),
    ],
)
def test_flags_without_effect_are_refused(run, flags, says):
    done = call(run.path, *flags)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_one_objective_is_told_once(run):
    (run.dumps / "step-000002.safetensors").unlink()
    (run.dumps / "step-000003.safetensors").unlink()
    index = run.dumps / "index.jsonl"
    index.write_text(index.read_text().splitlines()[0] + "\n")
    shown = call(run.path).stdout
    assert shown.count("student / sequence_optimal") == 1
    index.unlink()
    done = call(run.path, "--lenient")
    assert "index.jsonl: absent" in done.stderr
    assert "not in the index" not in done.stderr
