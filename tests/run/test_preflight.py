"""What stops a run before it starts: missing or wrong folders, secrets, ports, memory, GPUs. And how a machine is read."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from openclaw_core.config.load import load_profile
from openclaw_core.config.schema import Config
from openclaw_core.errors import UsageFindings
from openclaw_core.run import host as machine
from openclaw_core.run.host import Gpu, Host, cgroup_limit, main_memory, read_gpus, read_host
from openclaw_core.run.memory import GIB
from openclaw_core.run.plan import Plan, make_plan
from openclaw_core.run.preflight import occupied_port, preflight

BIG = Host(64, 1024 * GIB, "its main memory", tuple(Gpu(i, 80 * GIB, 80 * GIB) for i in range(8)))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").touch()
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 9728,
        "vocab_size": 151936,
        "rope_theta": 5000000,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "max_position_embeddings": 262144,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def published(model: Path, *overrides: str) -> tuple[Config, Plan]:
    resolved = load_profile("qwen3-4b-topk", [f"student.hf={model}", "proxy.port=0", *overrides], {})
    return resolved.config, make_plan(resolved)


def stopped(config: Config, plan: Plan, host: Host = BIG) -> str:
    with pytest.raises(UsageFindings) as caught:
        preflight(config, plan, {}, host)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_machine_that_suffices(model: Path) -> None:
    preflight(*published(model), {}, BIG)


def test_everything_missing_is_told_at_once(model: Path, tmp_path: Path) -> None:
    said = stopped(
        *published(model, f"teacher.hf={tmp_path / 'none'}", "proxy.api_key_env=NO_SUCH_KEY"), Host(1, GIB, "this machine")
    )
    for part in ("teacher.hf", "NO_SUCH_KEY", "more than the 1.0 GiB of this machine", "nvidia-smi shows none"):
        assert part in said


def test_folders_of_the_wrong_kind(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no checkpoint" in stopped(*published(model, f"student.load={tmp_path / 'empty'}"))
    said = stopped(*published(model, f"student.load={model}"))
    assert "holds a hf checkpoint. Give it as student.hf." in said


def test_the_stated_memory_wins_over_the_machines(model: Path) -> None:
    said = stopped(*published(model, "partition.host_memory_gib=64"))
    assert "more than the 64.0 GiB of partition.host_memory_gib" in said


def test_a_gpu_that_others_hold(model: Path) -> None:
    gpus = tuple(Gpu(i, 80 * GIB, 80 * GIB if i != 7 else 4 * GIB, ((4242, 76 * GIB),) if i == 7 else ()) for i in range(8))
    said = stopped(*published(model), Host(64, 1024 * GIB, "its main memory", gpus))
    assert "Device 7 has 4.0 GiB free" in said
    assert "held by pid 4242 76.0 GiB" in said
    assert "Device 6" not in said


def test_a_gpu_that_is_not_there(model: Path) -> None:
    said = stopped(*published(model), Host(64, 1024 * GIB, "its main memory", BIG.gpus[:6]))
    assert "Device 6 of the judge isn't there: this machine has 0, 1, 2, 3, 4, 5." in said


def test_occupied_port() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert "in use" in occupied_port("127.0.0.1", port)[0][0]
    assert occupied_port("127.0.0.1", 0) == []
    assert occupied_port("no.such.host.invalid", 80)


def test_control_groups_limit_memory(tmp_path: Path) -> None:
    (tmp_path / "job/inner").mkdir(parents=True)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "job/memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "job/inner/memory.max").write_text(f"{3 * GIB}\n")
    own = tmp_path / "own"
    own.write_text("0::/job/inner\n")
    assert cgroup_limit(tmp_path, own) == 2 * GIB
    assert cgroup_limit(tmp_path / "nothing", own) is None
    old = tmp_path / "old/memory/box"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text(str(GIB))
    own.write_text("5:cpu,memory:/box\n")
    assert cgroup_limit(tmp_path / "old", own) == GIB


def test_this_machine() -> None:
    host = read_host()
    assert host.cpus >= 1
    assert 0 < host.memory_bytes <= main_memory()
    assert host.gpus == ()


def test_gpus_as_nvidia_smi_tells_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$1" in\n*query-gpu*) echo "0, GPU-a, 81559, 81000"; echo "3, GPU-b, 81559, [N/A]";;\n'
        '*compute-apps*) echo "GPU-b, 4242, 70000";;\nesac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin:/usr/bin")
    first, second = read_gpus()
    assert (first.index, first.free_bytes, first.holders) == (0, 81000 * 2**20, ())
    assert (second.index, second.free_bytes, second.holders) == (3, second.total_bytes, ((4242, 70000 * 2**20),))
    monkeypatch.setattr(machine, "SMI", "no-such-tool")
    assert read_gpus() == ()
