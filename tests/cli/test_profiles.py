"""profiles: list, show with origins, differences, the schema that every shipped profile meets."""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml

from openclaw_cli.commands.profiles import diff, list_, schema, show
from openclaw_cli.output import use
from openclaw_core.config.json_schema import profile_schema
from openclaw_core.config.sources import PROFILES, profile_names


def shown_json(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    body: dict[str, object] = json.loads(capsys.readouterr().out)
    return body


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    use("json")
    list_()
    modes = {entry["name"]: entry["mode"] for entry in shown_json(capsys)["profiles"]}  # type: ignore[attr-defined]
    assert modes == {"qwen3-4b-grpo": "grpo", "qwen3-4b-opd": "opd", "qwen3-4b-topk": "hybrid", "tiny-cpu": "hybrid"}


def test_show_tells_origins(capsys: pytest.CaptureFixture[str]) -> None:
    use("json")
    show("qwen3-4b-grpo", ["train.steps=5"], changed=True)
    configuration = shown_json(capsys)["configuration"]
    assert configuration["train.steps"] == {"value": 5, "origin": "--set"}  # type: ignore[index]
    assert configuration["loss.w_opd"]["origin"] == "profile qwen3-4b-grpo"  # type: ignore[index]
    assert configuration["loss.k"]["origin"] == "profile qwen3-4b-topk"  # type: ignore[index]
    assert "loss.tail" not in configuration  # type: ignore[operator]


def test_show_quiet_is_a_profile_to_start_from(capsys: pytest.CaptureFixture[str]) -> None:
    use("quiet")
    show("tiny-cpu", [])
    assert yaml.safe_load(capsys.readouterr().out)["train"]["batch_size"] == 16


@pytest.mark.parametrize(
    ("overlay", "keys"),
    [
        ("qwen3-4b-grpo", {"description", "loss.w_opd", "loss.opd_on_rl_only", "partition.teacher.devices"}),
        ("qwen3-4b-opd", {"description", "loss.w_rl", "loss.opd_on_rl_only"}),
    ],
)
def test_overlays_differ_only_in_what_they_are_for(overlay: str, keys: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    use("quiet")
    diff("qwen3-4b-topk", overlay)
    assert set(capsys.readouterr().out.split()) == keys


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_meet_the_schema(name: str) -> None:
    jsonschema.validate(yaml.safe_load((PROFILES / f"{name}.yaml").read_text()), profile_schema())


def test_schema_refuses_unknown_keys(capsys: pytest.CaptureFixture[str]) -> None:
    use("human")
    schema()
    printed = json.loads(capsys.readouterr().out)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"loss": {"lr": 1}}, printed)
