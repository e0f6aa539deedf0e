"""--list says no more than the tests show: the registry is held against the kinds and layouts that they run."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import transformers
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint.families.verified import DENSE_LAYOUTS, MOE_LAYOUTS, VERIFIED
from openclaw_core.checkpoint.support import supported
from openclaw_core.models.architecture import FAMILIES, REFUSED

HERE = Path(__file__).parent


def test_the_registry_is_what_the_tests_run():
    dense, moe = runpy.run_path(str(HERE / "test_megatron.py")), runpy.run_path(str(HERE / "test_moe.py"))
    families = {options["family"]: DENSE_LAYOUTS for options in dense["KINDS"].values()}
    configs = (getattr(transformers, name)().model_type for name, _ in moe["KINDS"].values())
    families |= dict.fromkeys(configs, MOE_LAYOUTS)
    assert {name: one.loaded for name, one in VERIFIED.items()} == families
    assert {name: one.saved for name, one in VERIFIED.items()} == families
    compared = runpy.run_path(str(HERE / "test_logits.py"))["COMPARED"]
    assert {name: one.compared for name, one in VERIFIED.items()} == {name: f"TP {tp}" for name, (_, tp) in compared.items()}
    assert set(VERIFIED) == {name for name in FAMILIES if not name.endswith("_text")}
    assert set(runpy.run_path(str(HERE / "megatron_ranks.py"))["LAYOUTS"]) == {"one", "tp2", "pp2"}
    assert set(runpy.run_path(str(HERE / "moe_ranks.py"))["LAYOUTS"]) == {"one", "tp2", "pp2", "ep2"}


def test_list():
    shown = CliRunner().invoke(app, ["convert-ckpt", "--list"])
    assert shown.exit_code == 0
    for one in supported():
        assert one.model_type in shown.stdout
    assert "rules" not in shown.stdout
    for column in re.split(r"\s{2,}", shown.stdout.splitlines()[2].strip())[2:]:
        assert f"  {column}: " in shown.stdout, "what a column means is told below"
    told = shown.stdout[shown.stdout.index("  loaded at: ") :]
    assert "no limits" in told
    assert max(map(len, told.splitlines())) <= 100
    assert all(reason in " ".join(told.split()) for reason in REFUSED.values())
    data = json.loads(CliRunner().invoke(app, ["--json", "convert-ckpt", "--list"]).stdout)
    assert data["refused"] == REFUSED
    assert {one["model_type"] for one in data["families"]} == set(VERIFIED)
