"""Command lines of the servers that a run starts. No secrets in them: those go through the environment."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_core.config.schema import Config
from openclaw_core.rollout.engines.sglang import launch_argv

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class ServerCommand:
    """What to start on a port, and the path that answers 200 once the server is up. Servers listen on loopback."""

    argv: tuple[str, ...]
    health: str = "/health"

    def on(self, port: int) -> list[str]:
        """The whole argv."""
        return [*self.argv, "--host", "127.0.0.1", "--port", str(port)]


def engine_command(config: Config) -> ServerCommand:
    """One engine that serves the student's starting weights."""
    assert config.student.hf is not None
    rollout = config.rollout
    return _engine(config, config.student.hf, config.partition.rollout.devices_per_engine, rollout.engine, rollout.engine_flags)


def judge_command(config: Config) -> ServerCommand | None:
    """One judge; None where it runs elsewhere. A judge without a model of its own has the student's starting weights."""
    judge = config.judge
    if judge.kind == "openai":
        return None
    if judge.kind == "engine":
        model = judge.model or config.student.hf
        assert model is not None
        return _engine(config, model, config.partition.judge.devices_per_engine, "sglang", judge.engine_flags)
    argv = [sys.executable, "-m", "openclaw_core.sim.judge_server", "--votes", str(judge.votes), "--seed", str(config.train.seed)]
    argv += ["--useless-hints", str(judge.useless_hints), "--only-useless", str(judge.only_useless).lower()]
    return ServerCommand((*argv, "--unparsable", str(judge.unparsable)))


def _engine(config: Config, model: str, devices: int, kind: str, flags: Sequence[str]) -> ServerCommand:
    rollout, device, seed = config.rollout, config.partition.device, config.train.seed
    dtype, length = DTYPES[config.train.dtype], rollout.context_length
    if kind == "embedded":
        argv = [sys.executable, "-m", "openclaw_core.rollout.engines.embedded", "--model", model, "--device", device]
        return ServerCommand((*argv, "--dtype", dtype, "--context-length", str(length), "--seed", str(seed)))
    argv = launch_argv(
        model,
        tensor_parallel=devices,
        context_length=length,
        seed=seed,
        extra=["--dtype", dtype, "--device", device, *flags],
        python=rollout.engine_python or sys.executable,
    )
    return ServerCommand(tuple(argv))
