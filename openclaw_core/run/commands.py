"""Command lines of the servers that a run starts. No secrets in them: those go through the environment."""

from __future__ import annotations

import sys

from openclaw_core.config.schema import Config

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def engine_command(config: Config, model: str) -> tuple[list[str], str]:
    """argv of a rollout engine for the student and the path that tells its health."""
    rollout, partition = config.rollout, config.partition
    argv = [sys.executable, "-m", "openclaw_core.rollout.engines.embedded", "--model", model]
    argv += ["--device", partition.device, "--dtype", DTYPES[config.train.dtype], "--context-length", str(rollout.context_length)]
    argv += ["--seed", str(config.train.seed)]
    return argv, "/health"


def judge_command(config: Config) -> tuple[list[str], str] | None:
    """argv of the judge and the path that tells its health; None for a judge that runs elsewhere."""
    judge = config.judge
    if judge.kind == "openai":
        return None
    argv = [sys.executable, "-m", "openclaw_core.sim.judge_server", "--votes", str(judge.votes), "--seed", str(config.train.seed)]
    argv += ["--useless-hints", str(judge.useless_hints), "--only-useless", str(judge.only_useless).lower()]
    argv += ["--unparsable", str(judge.unparsable)]
    return argv, "/health"
