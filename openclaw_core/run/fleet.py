"""All processes of a run, placed by the plan, behind the few things that the loop asks of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from openclaw_core.config.schema import Config
from openclaw_core.errors import UserError
from openclaw_core.rollout.engines.client import EngineClient
from openclaw_core.rollout.engines.swap import swap_weights
from openclaw_core.run import placement
from openclaw_core.run.actors.rollout import RolloutActor
from openclaw_core.run.actors.server import ServerActor
from openclaw_core.run.actors.student import StudentActor
from openclaw_core.run.actors.teacher import TeacherActor
from openclaw_core.run.actors.users import UsersActor
from openclaw_core.run.cluster_watch import ClusterWatch, end_here
from openclaw_core.run.commands import ServerCommand, engine_command, judge_command
from openclaw_core.run.placement import Bundle, Cluster, Heartbeat
from openclaw_core.run.plan import Plan
from openclaw_core.run.processes import ProcessRecord
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.services import stop_survivors
from openclaw_core.types import Sample, TeacherScores

if TYPE_CHECKING:
    from openclaw_core.run.results import OldPass, StepResult

START_TIMEOUT_S = {"cpu": 180.0, "cuda": 1800.0}
DRAIN_S = 600.0
BLAME_S = 2.0
GRACE_S = 3.0


@dataclass(frozen=True)
class Sources:
    """Checkpoints that the roles start from, each a torch_dist or a Hugging Face folder, and one of the run to go on from."""

    student: Path
    teacher: Path
    checkpoint: Path | None = None


def bundles_of(plan: Plan, config: Config) -> list[Bundle]:
    """One bundle per rank and per engine, and one CPU for the proxy and for simulated users each."""
    on_gpu = plan.device == "cuda"
    found = [
        Bundle(role.name, process.index, gpus=len(process.devices) if on_gpu else 0)
        for role in plan.roles.values()
        for process in role.processes
    ]
    if not plan.roles["judge"].processes and config.judge.kind == "scripted":
        found.append(Bundle("judge", 0))
    found.append(Bundle("proxy", 0))
    if config.users is not None:
        found.append(Bundle("users", 0))
    return found


def _show_devices(config: Config) -> None:
    """Ray, and every process it starts, sees the devices that the plan may use: none on a CPU run, whatever the machine has."""
    allowed = config.partition.allowed_devices
    if config.partition.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif allowed is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, allowed))


class Fleet:
    """Started by start(), ended by stop(). Methods block; those that return references don't.

    meanwhile is called again and again while the student, the engines or a reading is waited for. tell is called from a thread
    with what ends this process at once.
    """

    def __init__(self, run: RunFolder, plan: Plan, config: Config, tell: Callable[[UserError], None]) -> None:
        self.run, self.plan, self.config, self._tell = run, plan, config, tell
        self.timeout_s = START_TIMEOUT_S[plan.device]
        _show_devices(config)
        self.cluster = Cluster(run.path, bundles_of(plan, config))
        self._watch = ClusterWatch(self._lost)
        self.engine_urls: list[str] = []
        self.proxy_url = ""
        self.meanwhile: Callable[[], None] | None = None
        self._actors: list[Any] = []
        self._heartbeat = Heartbeat()
        self._up = False

    def start(self, sources: Sources) -> int:
        """Brings every role up at the same time; returns the step that the student is at."""
        self._record_children()
        students = self._ranks("actor", StudentActor)
        teachers = self._ranks("teacher", TeacherActor)
        meetings = [placement.start(ranks, "meeting_point") for ranks in (students, teachers)]
        judges = self._servers("judge", judge_command(self.config))
        engines = self._servers("rollout", engine_command(self.config))
        self.proxy = self._place("proxy", RolloutActor, (self.run, self.config))
        self.users = self._place("users", UsersActor, (self.run, self.config))
        checkpoint = str(sources.checkpoint) if sources.checkpoint else None
        setup = self._setup(students, meetings[0], str(sources.student), checkpoint)
        teaching = self._setup(teachers, meetings[1], str(sources.teacher))
        judge_urls = placement.wait(judges, self.timeout_s) if judges else [self.config.judge.base_url or ""]
        self.engine_urls = placement.wait(engines, self.timeout_s)
        step = int(placement.wait(setup, self.timeout_s)[0])
        placement.wait(teaching, self.timeout_s)
        if step:
            self.push_weights(step)
        [self.proxy_url] = placement.call(self.proxy, "start", self.engine_urls, judge_urls[0], step, self.timeout_s)
        self.run.update(facts={"proxy": self.proxy_url})
        self._record_children()
        self._up = True
        return step

    def _record_children(self) -> None:
        """Notes what Ray has started for this run, so that leftovers of a killed driver can be told from strangers."""
        import psutil

        children = psutil.Process(os.getpid()).children(recursive=True)
        records = (ProcessRecord.of(f"ray-{child.pid}", child.pid) for child in children)
        known = {(record.pid, record.start) for record in self.run.read().processes}
        self.run.add_processes(*(r for r in records if r is not None and (r.pid, r.start) not in known))

    def _ranks(self, role: str, cls: type) -> list[Any]:
        world = len(self.plan.roles[role].processes)
        arguments = [(self.run, index, world, self.plan.nodes == 1, self.plan.device) for index in range(world)]
        return self._place(role, cls, *arguments)

    def _setup(self, ranks: list[Any], meeting: list[Any], source: str, *rest: Any) -> list[Any]:
        if not ranks:
            return []
        point = placement.wait(meeting, self.timeout_s)[0]
        return placement.start(ranks, "setup", self.config, source, point, *rest)

    def _servers(self, role: str, command: ServerCommand | None) -> list[Any]:
        if command is None:
            return []
        count = sum(bundle.role == role for bundle in self.cluster.bundles)
        handles = self._place(role, ServerActor, *((self.run, role, index, command) for index in range(count)))
        return placement.start(handles, "start", self.timeout_s)

    def _place(self, role: str, cls: type, *arguments: tuple[Any, ...]) -> list[Any]:
        if not any(bundle.role == role for bundle in self.cluster.bundles):
            return []
        handles = self.cluster.place(role, cls, arguments)
        self._actors += handles
        return handles

    @property
    def has_teacher(self) -> bool:
        """Whether this run scores at all."""
        return bool(self.cluster.actors.get("teacher"))

    def start_scoring(self, samples: Sequence[Sample], candidates: str) -> list[Any]:
        """References to the scores, complete on rank 0."""
        return placement.start(self.cluster.actors["teacher"], "score", list(samples), candidates)

    def teacher_at(self, requests: list[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The teacher's log-probs [K_i, R, K] at the student's ids, by sample id."""
        answer: dict[str, np.ndarray] = placement.call(self.cluster.actors["teacher"], "logprobs_at", requests)[0]
        return answer

    def forget(self, sample_ids: list[str]) -> None:
        """The teacher may drop what it keeps of these samples; nobody waits until it has."""
        placement.start(self.cluster.actors["teacher"], "forget", sample_ids)

    def old_pass(self, samples: list[Sample], scores: list[TeacherScores]) -> dict[str, OldPass]:
        """The student's old pass over the batch."""
        answer: dict[str, OldPass] = self._student("old_pass", samples, scores)[0]
        return answer

    def train_step(self, samples: list[Sample], scores: list[TeacherScores]) -> StepResult:
        """One optimizer step on all ranks."""
        answer: StepResult = self._student("train_step", samples, scores)[0]
        return answer

    def save(self, folder: Path, step: int) -> None:
        """A checkpoint of the student with its optimizer."""
        self._student("save", str(folder), step)

    def pause(self) -> None:
        """Requests wait from now on; those under way are answered first."""
        placement.call(self.proxy, "pause", DRAIN_S, meanwhile=self.meanwhile)

    def resume(self, version: int) -> None:
        """Requests go on, answered by weights of this version."""
        placement.call(self.proxy, "resume", version)

    def push_weights(self, version: int) -> None:
        """The student's weights into every engine, as version; engines never serve a mixture."""
        folder = self.run.weights / f"v{version:06d}"
        self._student("export_hf", str(folder))
        asyncio.run(self._swap(folder, version))
        for old in self.run.weights.iterdir():
            if old != folder:
                shutil.rmtree(old)

    async def _swap(self, folder: Path, version: int) -> None:
        clients = [EngineClient(url) for url in self.engine_urls]
        try:
            await swap_weights(clients, str(folder), version)
        finally:
            await asyncio.gather(*(client.aclose() for client in clients))

    def start_users(self, step: int) -> None:
        """Simulated users begin to talk, where the run has some."""
        placement.call(self.users, "start", self.proxy_url, step)

    def sessions(self) -> int:
        """Sessions that the simulated users have begun."""
        return sum(placement.call(self.users, "sessions"))

    def read_preference(self) -> tuple[float, float, int] | None:
        """Preference rate, solved rate and number of held-out tasks; None without simulated users."""
        return self._evaluate() if self.users else None

    def _evaluate(self) -> tuple[float, float, int] | None:
        return placement.call(self.users, "evaluate", self.engine_urls, meanwhile=self.meanwhile)[0]

    def _student(self, method: str, *arguments: Any) -> list[Any]:
        return placement.call(self.cluster.actors["actor"], method, *arguments, meanwhile=self.meanwhile)

    def teacher_hash(self) -> str:
        """Hash of the teacher's weights."""
        return str(placement.call(self.cluster.actors["teacher"], "weights_hash")[0])

    def check_alive(self) -> None:
        """Raises UserError when a process of this run has ended; returns at once."""
        self._heartbeat.check(self._actors)

    def blame(self) -> None:
        """After a failure: raises UserError where its cause is a process that has ended, which may take a moment to show."""
        deadline = time.monotonic() + BLAME_S
        while time.monotonic() < deadline:
            self.check_alive()
            time.sleep(0.1)

    def stop(self) -> None:
        """Users leave, requests drain, servers end, then Ray; before start() is through there is nobody to wait for.

        Problems on the way don't keep the rest alive.
        """
        # The proxy may hold requests: it has to refuse them before the users who wait for them can leave.
        graceful = (
            (self.cluster.actors.get("users", []), "leave", ()),
            (self.cluster.actors.get("proxy", []), "stop", (10.0,)),
            (self.cluster.actors.get("users", []), "stop", ()),
            (self.cluster.actors.get("rollout", []) + self.cluster.actors.get("judge", []), "stop", ()),
        )
        for handles, method, arguments in graceful if self._up else ():
            try:
                placement.call(handles, method, *arguments, timeout=45.0)
            except Exception as error:
                with self.run.log("driver").open("a", encoding="utf-8") as log:
                    log.write(f"{method} of a process failed while the run ended: {error}\n")
        self._watch.stop()
        self.cluster.stop()
        stop_survivors(self.run, grace_s=GRACE_S)

    def _lost(self, name: str) -> None:
        def close(reason: str) -> None:
            self.run.update(state="failed", reason=reason)
            stop_survivors(self.run, grace_s=GRACE_S)

        what = f"Ray's {name} of this run has ended by itself or was killed, so the run ends too."
        end_here(UserError(what, f"Go on with `openclaw train --resume {self.run.path}`."), tell=self._tell, before=close)
