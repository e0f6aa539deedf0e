"""Puts the planned roles on a Ray cluster as actors. The only file that imports ray.

Cost: one placement group; its bundles are checked against every node before anything is asked for, so an
impossible plan is an error at once and not an endless wait.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_core.errors import UserError, first_line


class ProcessEnded(UserError):
    """A process of this run is gone."""


@dataclass(frozen=True)
class Bundle:
    """Room for one actor: rank or engine number index of a role, with gpus whole GPUs."""

    role: str
    index: int
    gpus: int = 0
    cpus: int = 1

    @property
    def resources(self) -> dict[str, float]:
        return {"CPU": float(self.cpus)} | ({"GPU": float(self.gpus)} if self.gpus else {})


def infeasible(bundles: Sequence[Bundle], nodes: Sequence[dict[str, float]]) -> list[str]:
    """Bundles that find no node by first fit, largest first; nodes hold free CPU and GPU counts."""
    free = [dict(node) for node in nodes]
    unplaced = []
    for bundle in sorted(bundles, key=lambda b: (-b.gpus, -b.cpus)):
        for node in free:
            if all(node.get(name, 0.0) >= amount for name, amount in bundle.resources.items()):
                for name, amount in bundle.resources.items():
                    node[name] -= amount
                break
        else:
            unplaced.append(f"{bundle.role}[{bundle.index}] needs {bundle.gpus} GPUs and {bundle.cpus} CPUs")
    return unplaced


OBJECT_STORE_BYTES = 512 * 2**20


def _new_token(run_folder: Path) -> Path:
    """A fresh secret that only this user can read; every process of the cluster must present it."""
    path = run_folder / "ray-token"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path


def _keep_stdout_clean() -> None:
    """Ray prints remarks on dead workers to stdout, where results go; the errors that follow say the same."""
    from ray._private import worker

    worker._worker_logs_enabled = False


_known: dict[str, tuple[str, Path]] = {}
"""Name and run folder of each actor that this process has placed, by Ray's id."""


class Cluster:
    """A Ray cluster of this run (or the one at RAY_ADDRESS) and the actors placed on it."""

    def __init__(self, run_folder: Path, bundles: Sequence[Bundle], *, wait_s: float = 120.0) -> None:
        self.bundles = list(bundles)
        self._run_folder = run_folder
        self._start(run_folder)
        self._check_room()
        self._group = self._reserve(wait_s)
        self.actors: dict[str, list[Any]] = {}

    def _start(self, run_folder: Path) -> None:
        address = os.environ.get("RAY_ADDRESS")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not address:
            # Ray reads its authentication settings while it is imported.
            os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(_new_token(run_folder)))
        import ray

        _keep_stdout_clean()
        options: dict[str, Any] = {"namespace": run_folder.name, "log_to_driver": False, "logging_level": "ERROR"}
        if not address:
            cpus = max(os.cpu_count() or 1, sum(b.cpus for b in self.bundles))
            options |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        try:
            ray.init(address=address or "local", **options)
        except Exception as error:  # Ray raises bare ones
            said = first_line(error)
            raise UserError(
                f"Ray did not start: {said.rstrip('.')}.",
                "Look whether the machine is overloaded or out of memory, then try again.",
            ) from error

    def _check_room(self) -> None:
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        unplaced = infeasible(self.bundles, nodes)
        if unplaced:
            self.stop()
            have = "; ".join(f"node {i}: {n.get('GPU', 0):.0f} GPUs, {n.get('CPU', 0):.0f} CPUs" for i, n in enumerate(nodes))
            raise UserError(
                f"the plan can never be placed on this cluster ({have}): {'; '.join(unplaced)}.",
                "Give the roles fewer devices in `partition`, or start Ray with more.",
            )

    def _reserve(self, wait_s: float) -> Any:
        import ray
        from ray.util.placement_group import placement_group

        group = placement_group([b.resources for b in self.bundles], strategy="PACK")
        if not group.wait(wait_s):
            free = ray.available_resources()
            need = {name: sum(b.resources.get(name, 0.0) for b in self.bundles) for name in ("CPU", "GPU")}
            self.stop()
            raise UserError(
                f"the cluster did not free the planned devices within {wait_s:.0f} s: asked for {need}, "
                f"free are CPU {free.get('CPU', 0):.0f} and GPU {free.get('GPU', 0):.0f}.",
                "End the run that holds them, or give the roles fewer devices.",
            )
        return group

    def place(self, role: str, cls: type, arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Starts one actor of cls per bundle of the role; arguments holds each one's constructor arguments."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        slots = [(i, b) for i, b in enumerate(self.bundles) if b.role == role]
        remote = ray.remote(cls)
        self.actors[role] = [
            remote.options(
                num_cpus=bundle.cpus,
                num_gpus=bundle.gpus,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=slot),
            ).remote(*args)
            for (slot, bundle), args in zip(slots, arguments, strict=True)
        ]
        for handle, (_, bundle) in zip(self.actors[role], slots, strict=True):
            _known[handle._actor_id.hex()] = f"{role}-{bundle.index}", self._run_folder
        return self.actors[role]

    def stop(self) -> None:
        """Ends the actors and, where this run started the cluster, the cluster."""
        import ray

        ray.shutdown()


class Heartbeat:
    """Asks actors for a sign of life without waiting for busy ones."""

    def __init__(self) -> None:
        self._asked: dict[Any, Any] = {}

    def check(self, handles: Sequence[Any]) -> None:
        """Raises UserError when one of the actors has ended."""
        for handle in handles:
            reference = self._asked.get(handle)
            if reference is None:
                self._asked[handle] = handle.__ray_ready__.remote()
            elif done([reference]):
                del self._asked[handle]
                wait([reference])


def call(
    handles: Sequence[Any], method: str, *args: Any, timeout: float | None = None, meanwhile: Callable[[], None] | None = None
) -> list[Any]:
    """Calls one method on all handles at the same time; answers in their order. meanwhile is as in wait."""
    return wait(start(handles, method, *args), timeout, meanwhile)


def start(handles: Sequence[Any], method: str, *args: Any) -> list[Any]:
    """Like call, without waiting: returns references for wait."""
    import ray

    shared = [ray.put(arg) if isinstance(arg, (list, tuple, dict)) else arg for arg in args]
    return [getattr(handle, method).remote(*shared) for handle in handles]


MEANWHILE_S = 0.05


def wait(references: list[Any], timeout: float | None = None, meanwhile: Callable[[], None] | None = None) -> list[Any]:
    """Waits for references of start; a dead actor or an error inside one is raised here.

    meanwhile, which must return at once, is called again and again until they are there (then without a timeout).
    """
    import ray

    while meanwhile is not None:
        try:
            return _get(references, MEANWHILE_S)
        except ray.exceptions.GetTimeoutError:
            meanwhile()
    try:
        return _get(references, timeout)
    except ray.exceptions.GetTimeoutError:
        raise UserError(
            f"Processes of this run gave no answer for {timeout:.0f} s.",
            "Look into logs/ of the run folder, then resume the run.",
        ) from None


def _get(references: list[Any], timeout: float | None) -> list[Any]:
    import ray

    try:
        return ray.get(references, timeout=timeout)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, UserError):
            raise cause from None
        what = f"{type(cause).__name__}: {cause}" if cause is not None else str(error).splitlines()[-1]
        raise UserError(
            f"A process of this run failed: {what}.", "The traceback is in logs/driver.log of the run folder."
        ) from error
    except ray.exceptions.RayActorError as error:
        raise _ended(error) from error
    except (ray.exceptions.RaySystemError, ConnectionError) as error:
        raise UserError(
            f"The Ray cluster of this run can't be reached any more ({first_line(error)}).", "Resume the run."
        ) from error


def _ended(error: Any) -> ProcessEnded:
    """Which process is gone, by its actor."""
    name, folder = _known.get(error.actor_id or "", ("", None))
    how = "has ended by itself or was killed"
    if error.actor_init_failed:
        how = f"failed at its start: {str(error).splitlines()[-1]}"
    if folder is None:
        return ProcessEnded(f"A process of this run {how}.", "Look into logs/ of the run folder, then resume the run.")
    remedy = f"Look into {folder}/logs/{name}*.log, then go on with `openclaw train --resume {folder}`."
    return ProcessEnded(f"Process {name} of this run {how}.", remedy)


def done(references: list[Any]) -> bool:
    """Whether all references are ready (an error counts as ready)."""
    import ray

    return len(ray.wait(references, num_returns=len(references), timeout=0)[0]) == len(references)
