"""What a run starts from, as prepare() leaves it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.config.load import load_profile
from openclaw_core.config.sources import ASSETS
from openclaw_core.errors import UserError
from openclaw_core.rollout.store import Store
from openclaw_core.run.launch import Job, prepare
from openclaw_core.run.plan import make_plan
from openclaw_core.run.progress import SilentWatcher
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.runs import create_run

HF = ASSETS / "tiny-qwen3"
foreign = runpy.run_path(str(Path(__file__).parents[1] / "teacher" / "foreign.py"))
BRIDGE = "train.loader=megatron_bridge"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path, "demo")


def prepared(run: RunFolder, *overrides: str, saved: int | None = None) -> Job:
    resolved = load_profile("tiny-cpu", overrides, {})
    return prepare(resolved, make_plan(resolved), run, saved, SilentWatcher())


def test_our_own_loader_starts_from_a_conversion(run: RunFolder) -> None:
    sources = prepared(run).sources
    assert sources.student == sources.teacher == run.path / "models/student"
    assert sources.student.is_dir()


def test_another_loader_gets_the_folder_it_reads(run: RunFolder) -> None:
    sources = prepared(run, BRIDGE).sources
    assert (sources.student, sources.teacher) == (HF, HF)
    assert not (run.path / "models").exists()


def test_a_teacher_of_its_own_is_read_as_it_is(run: RunFolder) -> None:
    sources = prepared(run, BRIDGE, f"teacher.hf={HF}", "loss.w_opd=1").sources
    assert (sources.student, sources.teacher) == (HF, HF)


@pytest.mark.parametrize("overrides", [(), (BRIDGE,)])
def test_a_resumed_run_goes_on_from_its_checkpoint(run: RunFolder, overrides: tuple[str, ...]) -> None:
    Store(run.store).close()
    job = prepared(run, *overrides, saved=3)
    assert (job.sources.checkpoint, job.first_step) == (run.checkpoint(3), 4)
    assert prepared(run, *overrides, saved=0).sources.checkpoint is None


def test_a_teacher_whose_common_state_alone_states_its_architecture(run: RunFolder, tmp_path: Path) -> None:
    convert(plan_conversion(HF, tmp_path / "torch_dist", to="torch_dist"))
    teacher = foreign["bare"](tmp_path / "torch_dist", tmp_path / "teacher")
    assert prepared(run, BRIDGE, f"teacher.load={teacher}", "loss.w_opd=1").sources.teacher == teacher


def test_such_a_teacher_must_agree_with_the_config_that_is_named_beside_it(run: RunFolder, tmp_path: Path) -> None:
    convert(plan_conversion(HF, tmp_path / "torch_dist", to="torch_dist"))
    teacher = foreign["bare"](tmp_path / "torch_dist", tmp_path / "teacher")
    (tmp_path / "hf").mkdir()
    stated = json.loads((HF / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(stated | {"rms_norm_eps": 3e-5}))
    with pytest.raises(UserError, match=r"norm_eps: .* says 3e-05, megatron's arguments says 1e-06"):
        prepared(run, BRIDGE, f"teacher.load={teacher}", f"teacher.hf={tmp_path / 'hf'}", "loss.w_opd=1")


def test_a_folder_of_a_family_that_is_only_converted_is_refused(run: RunFolder, tmp_path: Path) -> None:
    folder = tmp_path / "moe"
    folder.mkdir()
    stated = json.loads((HF / "config.json").read_text())
    experts = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    (folder / "config.json").write_text(json.dumps(stated | experts))
    (folder / "model.safetensors").touch()
    with pytest.raises(UserError, match="It is qwen3_moe, and the trainer builds dense"):
        prepared(run, BRIDGE, f"student.hf={folder}")
