"""The proxy and the capture without training: the student answers, and what people say becomes samples for later."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Protocol

from openclaw_core.config.load import Resolved
from openclaw_core.errors import UserError, first_line
from openclaw_core.files import write_atomic
from openclaw_core.rollout.service import RolloutService, Stopped
from openclaw_core.run.commands import engine_command, judge_command
from openclaw_core.run.launch import RUNS
from openclaw_core.run.process_tree import tree
from openclaw_core.run.processes import ProcessRecord
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.runs import create_run, new_run_name
from openclaw_core.run.server import Server
from openclaw_core.run.sources import architecture_of
from openclaw_core.run.stopping import StopRequest

START_TIMEOUT_S = 1800.0
DRAIN_S = 30.0
POLL_S = 0.2


class Listener(Protocol):
    """Who is told what goes on."""

    def note(self, text: str) -> None:
        """One line."""


def serve(resolved: Resolved, *, run_folder: Path | None, out: Listener) -> tuple[RunFolder, Stopped]:
    """Serves until SIGINT or SIGTERM, or until a server that belongs to it ends (UserError); what was captured stays."""
    config = resolved.config
    if config.student.hf is None:
        raise UserError("student.hf is not set, so there is nothing to serve.", "Set it to a Hugging Face folder.")
    parent = run_folder.parent if run_folder is not None else RUNS
    name = run_folder.name if run_folder is not None else new_run_name(f"serve-{resolved.profile}")
    run = create_run(parent, name, facts={"student": config.student.hf, "profile": resolved.profile})
    write_atomic(run.config, resolved.to_yaml())
    _record_self(run)
    state, reason = "failed", ""
    try:
        with run.held(), StopRequest(out.note) as stop:
            stopped = _serve(resolved, run, stop, out)
        state, reason = "stopped", stop.reason or ""
    except BaseException as error:
        reason = first_line(error)
        raise
    finally:
        run.update(state=state, reason=reason)
    return run, stopped


def _serve(resolved: Resolved, run: RunFolder, stop: StopRequest, out: Listener) -> Stopped:
    config = resolved.config
    assert config.student.hf is not None
    engine = _Child(Server(run, "rollout-0-server", engine_command(config)))
    judging = judge_command(config)
    judge = _Child(Server(run, "judge-0-server", judging)) if judging else None
    servers = [server for server in (engine, judge) if server is not None]
    teacher = architecture_of(config.teacher or config.student)
    rollout = RolloutService.from_config(
        config,
        store_path=run.store,
        engine_urls=[engine.url],
        judge_url=judge.url if judge else config.judge.base_url or "",
        tokenizer_folder=config.student.hf,
        teacher_positions=teacher.max_position if teacher else None,
    )
    rollout.start()
    run.update(facts={"proxy": rollout.url})
    try:
        out.note(f"Listening on {rollout.url}. Whoever can chat can train the model later. Run folder: {run.path}")
        for server in servers:
            server.start()
        _until_stopped(servers, rollout, run, stop, out)
    finally:
        stopped = rollout.stop(DRAIN_S)
        for server in servers:
            server.server.stop()
    out.note(f"Stopped: {stopped.cut_requests} requests cut, {stopped.unjudged_turns} turns wait for the judge.")
    return stopped


def _until_stopped(servers: list[_Child], rollout: RolloutService, run: RunFolder, stop: StopRequest, out: Listener) -> None:
    ready = False
    while not stop.requested:
        for server in servers:
            server.check()
        if not ready and all(server.ready for server in servers):
            rollout.probe_judge()
            if rollout.wait_ready(1.0):
                ready = True
                run.update(state="running")
                out.note(f"Ready: {rollout.url}/chat/completions answers.")
        time.sleep(POLL_S)


class _Child:
    """A server that is started in the background."""

    def __init__(self, server: Server) -> None:
        self.server, self.url = server, server.url
        self._error: BaseException | None = None
        self.ready = False

    def start(self) -> None:
        """Begins; check() tells what came of it."""
        threading.Thread(target=self._start, daemon=True).start()

    def _start(self) -> None:
        try:
            self.server.start(START_TIMEOUT_S)
            self.ready = True
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raises what went wrong at the start, or ServiceError where the child has ended since."""
        if self._error is not None:
            raise self._error
        if self.ready:
            self.server.service.ensure_alive()


def _record_self(run: RunFolder) -> None:
    record = ProcessRecord.of("serve", os.getpid())
    if record is not None:
        run.add_processes(*tree(record)[:1])
