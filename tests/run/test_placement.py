"""What Ray says of processes and of itself, told in the words of a run. No cluster is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from openclaw_core.errors import UserError
from openclaw_core.run import placement
from openclaw_core.run.placement import Bundle, Cluster, infeasible


def test_a_process_that_ended_is_named_with_the_way_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(placement._known, "a1", ("teacher-0", Path("/runs/mine")))
    told = str(placement._ended(SimpleNamespace(actor_id="a1", actor_init_failed=False)))
    assert told == (
        "Process teacher-0 of this run has ended by itself or was killed. "
        "Look into /runs/mine/logs/teacher-0*.log, then go on with `openclaw train --resume /runs/mine`."
    )
    assert "A process of this run" in str(placement._ended(SimpleNamespace(actor_id=None, actor_init_failed=False)))


def test_a_cluster_that_does_not_start_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(**options: object) -> None:
        raise Exception("The current node timed out during startup.\nMore of it.")

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UserError, match=r"^Ray did not start: The current node timed out during startup\. Look"):
        Cluster(tmp_path, [Bundle("actor", 0)])


def test_bundles_that_find_no_room_are_named() -> None:
    bundles = [Bundle("actor", 0, gpus=2), Bundle("teacher", 0, gpus=1)]
    assert infeasible(bundles, [{"CPU": 2.0, "GPU": 3.0}]) == []
    assert infeasible(bundles, [{"CPU": 2.0, "GPU": 2.0}]) == ["teacher[0] needs 1 GPUs and 1 CPUs"]
