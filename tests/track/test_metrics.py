from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from openclaw_core.config.schema import Config
from openclaw_core.track import metrics, sinks
from openclaw_core.types import SampleKind

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def config(**sections):
    return Config.model_validate({"student": {"hf": "tiny"}, **sections})


def test_the_page_is_made_from_the_table():
    assert DOCS.read_text() == metrics.markdown()


def test_names_are_unique_and_told():
    assert len(metrics.METRICS) == len(metrics.TABLE)
    assert all(metric.meaning.endswith(".") and "|" not in metric.unit for metric in metrics.TABLE)
    assert metrics.unknown({"loss/total": 1, "loss/totl": 2}) == ["loss/totl"]


def test_kinds_of_samples_are_told_apart():
    told = metrics.by_kind({"all": {"loss/opd": 1.0}, "opd+rl": {"loss/opd": 2.0}, "rl": {"opd/k_star_1_share": 0.5}})
    assert told == {"loss/opd": 1.0, "loss/opd.opd_rl": 2.0, "opd/k_star_1_share.rl": 0.5}
    assert metrics.unknown(told) == []
    assert metrics.unknown({"loss/opd.judge": 1.0, "loss/totl.rl": 1.0}) == ["loss/opd.judge", "loss/totl.rl"]
    assert set(metrics.KINDS) == {kind.value for kind in SampleKind}


@pytest.mark.parametrize(
    ("sections", "constant", "moving"),
    [
        ({"loss": {"w_opd": 0}}, {"loss/opd", "opd/overlap", "seconds/teacher"}, {"loss/grpo", "batch/reward"}),
        ({"loss": {"w_rl": 0}}, {"loss/grpo", "ratio/clipped_share"}, {"loss/opd"}),
        ({"loss": {"max_candidates": 1}}, {"opd/first_share", "opd/candidates", "ratio/mean"}, {"opd/overlap"}),
        ({"loss": {"divergence": "jensen_shannon"}}, {"opd/signal", "opd/clipped_share"}, {"opd/abs_difference"}),
        (
            {"loss": {"opd_on_rl_only": "skip"}},
            {"loss/grpo.opd", "loss/opd.rl", "ratio/opd_mean.rl", "opd/signal.rl", "opd/candidates.rl", "opd/k_star_N_share.rl"},
            {"loss/grpo.rl", "loss/opd.opd", "loss/total.rl", "loss/total.opd", "opd/candidates.opd"},
        ),
        (
            {"loss": {"opd_on_rl_only": "anchor"}},
            {"loss/grpo.opd", "opd/candidates.rl", "opd/choice_share.rl", "opd/first_share.rl", "opd/k_star_N_share.rl"},
            {"loss/opd.rl", "opd/signal.rl", "opd/overlap.rl"},
        ),
        ({"loss": {"w_opd": 0}}, {"loss/grpo.opd", "loss/total.opd"}, {"loss/total.rl", "loss/grpo.opd_rl"}),
        ({"loss": {"w_opd": 0, "entropy_coef": 0.1}}, {"loss/grpo.opd"}, {"loss/total.opd"}),
        ({"loss": {"w_rl": 0}}, {"loss/total.rl"}, {"loss/grpo.opd", "loss/total.opd"}),
        ({"loss": {"subset": "overlap"}}, {"loss/kl"}, {"opd/support_size", "opd/empty_share"}),
        ({"loss": {"kl_coef": 0.1}, "users": {}}, {"opd/support_size"}, {"loss/kl", "eval/preference_rate"}),
    ],
)
def test_what_cannot_move_is_named_with_a_reason(sections, constant, moving):
    found = metrics.constants(config(**sections))
    assert constant <= found.keys()
    assert not metrics.unknown(found)
    assert not moving & found.keys()
    assert all(found.values())


def test_numbers_that_are_not_finite_are_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sinks.open_sinks(path).write(1, {"loss/total": float("nan"), "loss/opd": float("-inf"), "loss/grpo": 0.5})
    record = json.loads(path.read_text(), parse_constant=lambda text: pytest.fail(text))
    assert (record["step"], record["loss/total"], record["loss/opd"], record["loss/grpo"]) == (1, None, None, 0.5)


def test_a_resume_takes_back_later_steps(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = sinks.JsonlSink(path)
    for step, value in ((0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25)):
        sink.write(step, {"loss/total": value})
    lines, problems = sinks.read_metrics(path)
    assert [(line["step"], line["loss/total"]) for line in lines] == [(0, 0.0), (1, 0.1), (2, 0.25)]
    assert problems == []
    sink.write(2, {"eval/preference_rate": 0.5})
    last = sinks.read_metrics(path)[0][-1]
    assert (last["loss/total"], last["eval/preference_rate"]) == (0.25, 0.5)


def test_lines_that_cannot_be_read_are_told_and_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = sinks.JsonlSink(path)
    sink.write(1, {"loss/total": 1.0})
    with path.open("a") as file:
        file.write('{"loss/total": NaN}\n\n{"step": 2, "loss/to')
    sink.write(2, {"loss/total": 2.0})
    lines, problems = sinks.read_metrics(path)
    assert [line["loss/total"] for line in lines] == [1.0, 2.0]
    assert [problem.line for problem in problems] == [2, 4]
    assert str(problems[0]) == "metrics.jsonl, line 2: has no step"


def test_no_file_is_no_metrics(tmp_path):
    assert sinks.read_metrics(tmp_path / "metrics.jsonl") == ([], [])


def test_tensorboard_takes_finite_numbers_where_it_is_installed(tmp_path, monkeypatch):
    written = []

    class Writer:
        def __init__(self, folder, purge_step):
            written.append((Path(folder).name, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    monkeypatch.setattr(sinks, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    opened = sinks.open_sinks(tmp_path / "metrics.jsonl")
    opened.write(5, {"loss/total": 0.5, "loss/opd": float("nan"), "loss/kl": None})
    opened.close()
    assert written == [("tensorboard", 5), ("loss/total", 0.5, 5), "closed"]
    assert sinks.read_metrics(tmp_path / "metrics.jsonl")[0][0]["loss/total"] == 0.5


def test_without_tensorboard_there_is_the_file_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    sinks.open_sinks(tmp_path / "metrics.jsonl").write(1, {"loss/total": 0.5})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
