"""The command line that starts SGLang for this project."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def launch_argv(
    model: str,
    *,
    tensor_parallel: int = 1,
    mem_fraction: float | None = None,
    context_length: int | None = None,
    seed: int = 0,
    weight_version: int = 0,
    extra: Sequence[str] = (),
    python: str = sys.executable,
) -> list[str]:
    """argv of `python -m sglang.launch_server`, to which --host and --port are added; holds no secret. extra goes last.

    The tokenizer stays on (the judge needs chat), and the weight version starts as a number, since EngineClient reads it as
    one. None leaves a value to SGLang.
    """
    argv = [python, "-m", "sglang.launch_server", "--model-path", model]
    argv += ["--tp", str(tensor_parallel), "--random-seed", str(seed), "--weight-version", str(weight_version)]
    if mem_fraction is not None:
        argv += ["--mem-fraction-static", f"{mem_fraction:g}"]
    if context_length is not None:
        argv += ["--context-length", str(context_length)]
    return [*argv, *extra]
