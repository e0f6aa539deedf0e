"""Profiles, overlays, environment and --set: who wins, where each value comes from, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_core.config.load import Resolved, load_profile
from openclaw_core.config.sources import ASSETS, profile_names
from openclaw_core.errors import UsageError, UsageFindings


def load(tmp_path: Path, text: str, *overrides: str, env: dict[str, str] | None = None, name: str = "mine.yaml") -> Resolved:
    path = tmp_path / name
    path.write_text(text)
    return load_profile(path, overrides, env or {}, base=tmp_path)


def findings(tmp_path: Path, text: str, *overrides: str, env: dict[str, str] | None = None) -> dict[str, str]:
    with pytest.raises(UsageFindings) as caught:
        load(tmp_path, text, *overrides, env=env)
    assert caught.value.exit_code == 2
    return dict(caught.value.findings)


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_loads_without_environment(name: str) -> None:
    resolved = load_profile(name, (), {})
    assert set(resolved.origins) == set(resolved.values())
    assert resolved.config.description


def test_published_defaults() -> None:
    config = load_profile("qwen3-4b-topk", (), {}).config
    loss, train, optimizer, rollout, partition = config.loss, config.train, config.optimizer, config.rollout, config.partition
    assert (loss.k, loss.max_candidates, loss.selection, loss.subset, loss.diff_clip) == (
        4,
        3,
        "sequence_optimal",
        "student",
        1.0,
    )
    assert (loss.w_rl, loss.w_opd, loss.eps_clip, loss.eps_clip_high, loss.opd_on_rl_only) == (1, 1, 0.2, 0.28, "anchor")
    assert (optimizer.lr, optimizer.beta1, optimizer.beta2, optimizer.weight_decay) == (1e-5, 0.9, 0.98, 0.1)
    assert (train.batch_size, train.max_tokens_per_device, train.save_every, train.recompute) == (16, 32768, 100, True)
    assert (rollout.max_response_tokens, rollout.context_length, rollout.temperature) == (8192, 32768, 0.6)
    assert (loss.kl_coef, loss.entropy_coef, config.judge.votes) == (0, 0, 3)
    assert (partition.actor.devices, partition.actor.tensor_parallel, partition.actor.sequence_parallel) == (4, 4, True)
    assert (
        partition.rollout.devices,
        partition.rollout.devices_per_engine,
        partition.judge.devices,
        partition.teacher.devices,
    ) == (2, 2, 1, 1)
    facts = config.student.architecture
    assert facts is not None
    assert (facts.layers, facts.hidden, facts.rope_theta, facts.vocab) == (36, 2560, 5e6, 151936)


def test_precedence_and_origins(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("student: {}\nloss: {k: 2, w_rl: 0.5}\ntrain: {steps: 7, seed: 1}\n")
    text = "extends: base.yaml\ntrain: {steps: 8}\n"
    env = {"OPENCLAW__TRAIN__STEPS": "9", "OPENCLAW__TRAIN__SEED": "2", "OTHER": "x"}
    resolved = load(tmp_path, text, "train.steps=10", env=env)
    assert (resolved.config.train.steps, resolved.config.train.seed, resolved.config.loss.k) == (10, 2, 2)
    assert resolved.origins["train.steps"] == "--set"
    assert resolved.origins["train.seed"] == "environment OPENCLAW__TRAIN__SEED"
    assert resolved.origins["loss.k"] == f"file {tmp_path / 'base.yaml'}"
    assert resolved.origins["train.batch_size"] == "default"


def test_a_variable_that_changes_a_file_or_loses_to_a_flag_is_told(tmp_path: Path) -> None:
    resolved = load(
        tmp_path,
        "student: {}\ntrain: {steps: 7, seed: 1}\n",
        "train.steps=10",
        env={"OPENCLAW__TRAIN__STEPS": "9", "OPENCLAW__TRAIN__SEED": "2"},
    )
    told = " ".join(what for what, _ in resolved.warnings)
    assert "OPENCLAW__TRAIN__STEPS says 9 and loses" in told
    assert "train.seed is 2 (environment OPENCLAW__TRAIN__SEED) in place of 1" in told


def test_several_parents_the_later_wins(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("student: {}\ntrain: {steps: 1, seed: 1}\n")
    (tmp_path / "b.yaml").write_text("train: {steps: 2}\n")
    config = load(tmp_path, "extends: [a.yaml, b.yaml]\n").config
    assert (config.train.steps, config.train.seed) == (2, 1)


def test_null_takes_a_section_away_with_its_origins(tmp_path: Path) -> None:
    resolved = load(tmp_path, "extends: tiny-cpu\nusers: null\n")
    assert resolved.config.users is None
    assert resolved.origins["users"].startswith("file ")
    assert not any(key.startswith("users.") for key in resolved.origins)


def test_circle_of_extends(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("extends: mine.yaml\n")
    with pytest.raises(UsageError, match=r"circle: mine\.yaml -> other\.yaml -> mine\.yaml"):
        load(tmp_path, "extends: other.yaml\n")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("loss.lr", "optimizer.lr"),
        ("distill.topk", "loss.k"),
        ("loss.topk", "loss.k"),
        ("rollout.topk", "rollout.top_k"),
        ("train.savve_every", "train.save_every"),
        ("partition.actor.tensorparallel", "partition.actor.tensor_parallel"),
        ("steps", "train.steps"),
        ("loss.max_candidate", "loss.max_candidates"),
    ],
)
def test_unknown_keys_name_the_nearest(tmp_path: Path, key: str, meant: str) -> None:
    found = findings(tmp_path, "student: {}\n", f"{key}=1")
    assert found[f"There is no key {key} (--set)."] == f"Did you mean {meant}?"


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = "student: {hff: x}\nloss:\n  k: true\n  deep: {er: {still: 1}}\ntrain: 4\noptimizer: {lr: [1]}\n"
    found = findings(tmp_path, text, "loss.selection=tokenoptimal", "bad", env={"OPENCLAW__JUDGE__VOTES": "many"})
    told = "\n".join(found)
    for part in (
        "student.hff",
        "loss.k",
        "loss.deep.er.still",
        "train (file",
        "optimizer.lr",
        "loss.selection",
        "--set bad",
        "judge.votes",
    ):
        assert part in told
    assert "environment OPENCLAW__JUDGE__VOTES" in told


@pytest.mark.parametrize(
    ("setting", "wants"),
    [
        ("loss.k=true", "a whole number"),
        ("loss.k=2.5", "a whole number"),
        ("loss.k=65", "at most 64"),
        ("optimizer.lr=fast", "a number"),
        ("optimizer.lr=.nan", "a finite number"),
        ("optimizer.lr=0", "greater than 0"),
        ("train.recompute=1", "true or false"),
        ("train.recompute=yes", "true or false"),
        ("loss.subset=both", "one of student, teacher, overlap"),
        ("partition.allowed_devices=a-b", "no list of device ids"),
        ("partition.allowed_devices=1,1", "names a device twice"),
        ("train.steps=010", "a whole number"),
    ],
)
def test_wrong_values(tmp_path: Path, setting: str, wants: str) -> None:
    assert wants in next(iter(findings(tmp_path, "student: {}\n", setting)))


def test_values_as_people_write_them(tmp_path: Path) -> None:
    config = load(
        tmp_path, "student: {}\n", "optimizer.lr=1e-4", "description=2024", "partition.allowed_devices=2,3,5-7", "loss.w_rl=1"
    ).config
    assert config.optimizer.lr == 1e-4
    assert config.description == "2024"
    assert config.partition.allowed_devices == (2, 3, 5, 6, 7)
    assert config.loss.w_rl == 1.0


def test_paths_become_absolute_where_they_were_written(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "p.yaml").write_text("student: {hf: model, load: package:tiny-qwen3}\n")
    config = load_profile("sub/p.yaml", ["teacher.hf=other"], {}, base=tmp_path).config
    assert config.student.hf == str(folder / "model")
    assert config.student.load == str(ASSETS / "tiny-qwen3")
    assert config.teacher is not None
    assert config.teacher.hf == str(tmp_path / "other")


def test_the_resolved_configuration_stands_alone(tmp_path: Path) -> None:
    resolved = load_profile("qwen3-4b-topk", ["loss.k=8", "partition.allowed_devices=0-7"], {}, base=tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(resolved.to_yaml())
    assert load_profile(path, (), {}).config == resolved.config


@pytest.mark.parametrize("value", ["${HOME}/x", "$KEY", "$(cat key)"])
def test_nothing_is_filled_in_from_the_environment(tmp_path: Path, value: str) -> None:
    assert "not done" in next(iter(findings(tmp_path, "student: {}\n", f"judge.model={value}", env={"KEY": "s3cret"})))


@pytest.mark.parametrize(
    "setting", ["judge.api_key=S3CRET", "judge.api_key_env=sk-S3CRET", "proxy.token=S3CRET", "api_key=S3CRET"]
)
def test_a_secret_as_a_value_is_refused_and_not_repeated(tmp_path: Path, setting: str) -> None:
    with pytest.raises(UsageFindings) as caught:
        load(tmp_path, "student: {}\n", setting)
    assert "S3CRET" not in str(caught.value)
    assert "environment variable" in str(caught.value)


def test_an_address_with_a_secret_is_refused_and_not_repeated(tmp_path: Path) -> None:
    text = "student: {}\njudge: {kind: openai, model: m, base_url: 'https://me:S3CRET@host/v1'}\n"
    with pytest.raises(UsageFindings) as caught:
        load(tmp_path, text)
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "no valid YAML at line"),
        ("loss: {k: 1}\nloss: {k: 2}\n", "the key loss stands twice"),
        ("loss:\n  k: 1\n  k: 2\n", "the key k stands twice"),
        ("- a\n", "holds no mapping"),
        ("x: !!python/object:os.system 1\n", "no valid YAML"),
        ("extends: 3\n", "extends in"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(tmp_path, text)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="no text file"):
        load_profile("binary.yaml", (), {}, base=tmp_path)
    with pytest.raises(UsageError, match="is a folder"):
        load_profile(tmp_path, (), {})
    with pytest.raises(UsageError, match="There is no profile file"):
        load_profile("missing.yaml", (), {}, base=tmp_path)
    with pytest.raises(UsageError, match="Did you mean tiny-cpu"):
        load_profile("tiny-cpus", (), {}, base=tmp_path)


def test_model_facts_by_name_and_their_origin(tmp_path: Path) -> None:
    resolved = load(tmp_path, "student: {}\n", "student.architecture=qwen3-4b")
    assert resolved.origins["student.architecture.layers"] == "models/qwen3-4b.yaml"
    assert "Did you mean qwen3-4b?" in findings(tmp_path, "student: {architecture: qwen3-5b}\n").values().__iter__().__next__()


def test_visible_devices_are_the_allowed_ones(tmp_path: Path) -> None:
    text = "student: {}\njudge: {kind: openai, model: m, base_url: 'http://h/v1'}\n"
    shown = load(tmp_path, text, env={"CUDA_VISIBLE_DEVICES": "2,3,5,7"})
    assert shown.config.partition.allowed_devices == (2, 3, 5, 7)
    assert shown.origins["partition.allowed_devices"] == "environment CUDA_VISIBLE_DEVICES"
    named = load(tmp_path, text, "partition.allowed_devices=1", env={"CUDA_VISIBLE_DEVICES": "2,3"})
    assert named.config.partition.allowed_devices == (1,)
    assert any("CUDA_VISIBLE_DEVICES=2,3 loses" in what for what, _ in named.warnings)
    unknown = load(tmp_path, text, env={"CUDA_VISIBLE_DEVICES": "GPU-8f2"})
    assert unknown.config.partition.allowed_devices is None
    assert any("CUDA_VISIBLE_DEVICES" in what for what, _ in unknown.warnings)
    assert load_profile("tiny-cpu", (), {"CUDA_VISIBLE_DEVICES": "5"}).config.partition.allowed_devices is None


def test_a_variable_of_a_wrong_key_is_told(tmp_path: Path) -> None:
    found = findings(tmp_path, "student: {}\n", env={"OPENCLAW__LOSS__LR": "1"})
    assert found["There is no key loss.lr (environment OPENCLAW__LOSS__LR)."] == "Did you mean optimizer.lr?"


def test_what_was_written_is_told_as_yaml_and_once(tmp_path: Path) -> None:
    found = findings(tmp_path, "extends: tiny-cpu", "loss.k=[1", "loss.w_rl=true", "users.preference=null", "extends=x")
    text = "\n".join(found)
    assert "loss.w_rl (--set) is true, but" in text
    assert "users.preference (--set) is null, but" in text
    assert "extends (--set) can only stand in a profile's file." in text
    assert text.count("loss.k") == 1


def test_a_model_that_does_not_ship(tmp_path: Path) -> None:
    [(what, remedy)] = findings(tmp_path, "extends: tiny-cpu", "teacher.hf=package:nope").items()
    assert "package:nope" in what
    assert remedy == "There is package:tiny-qwen3."


def test_variables_that_look_like_ours_are_told(tmp_path: Path) -> None:
    env = {"OPENCLAW_LOSS__K": "9", "openclaw__loss__k": "9", "OPENCLAW_GATEWAY_TOKEN": "x", "OPENCLAW_DEBUG": "1"}
    resolved = load(tmp_path, "extends: tiny-cpu", env=env)
    assert resolved.config.loss.k == 4
    assert [what for what, _ in resolved.warnings] == [
        "The environment variable OPENCLAW_LOSS__K is not read.",
        "The environment variable openclaw__loss__k is not read.",
    ]
    assert resolved.warnings[0][1] == "Call it OPENCLAW__LOSS__K, or unset it."
