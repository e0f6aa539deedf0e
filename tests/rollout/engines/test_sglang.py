from __future__ import annotations

from openclaw_core.rollout.engines.sglang import launch_argv


def test_the_whole_command() -> None:
    argv = launch_argv("/m", tensor_parallel=2, mem_fraction=0.8, context_length=4096, seed=7, weight_version=3, python="py")
    flags = "--model-path /m --tp 2 --random-seed 7 --weight-version 3"
    assert " ".join(argv) == f"py -m sglang.launch_server {flags} --mem-fraction-static 0.8 --context-length 4096"


def test_extra_flags_come_last_and_unset_ones_are_left_out() -> None:
    argv = launch_argv("/m", extra=["--tp", "4"])
    assert argv[-2:] == ["--tp", "4"]
    assert not {"--mem-fraction-static", "--context-length"} & set(argv)
