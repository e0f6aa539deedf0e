"""The loop of a run: collect, score, train, give the engines new weights, keep what happened."""

from __future__ import annotations

import time
import traceback
from pathlib import Path

from openclaw_core.config.load import Resolved
from openclaw_core.dumps.writer import DumpWriter
from openclaw_core.errors import UserError, first_line
from openclaw_core.loss.needs import needs
from openclaw_core.rollout.store import Store
from openclaw_core.run.fleet import Fleet
from openclaw_core.run.frozen import Frozen
from openclaw_core.run.keep import Keeper
from openclaw_core.run.launch import Job, end_survivors, open_folder, prepare
from openclaw_core.run.legs import keep_leg
from openclaw_core.run.placement import ProcessEnded
from openclaw_core.run.plan import Plan
from openclaw_core.run.progress import Progress, Watcher
from openclaw_core.run.report import Report, build_report, going_on, write_report
from openclaw_core.run.results import OldPass
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.saved import saved_step
from openclaw_core.run.scores import ScoreKeeper
from openclaw_core.run.stopping import StopRequest
from openclaw_core.track.sinks import open_sinks
from openclaw_core.types import Sample, TeacherScores

POLL_S = 0.05
SHOW_EVERY_S = 0.5


def launch(resolved: Resolved, plan: Plan, *, run_folder: Path | None, resume: Path | None, watcher: Watcher) -> Report:
    """Runs to the last step, to a stop signal or to an error, and reports. What was done is on disk in every case."""
    steps = resolved.config.train.steps
    run = open_folder(resolved, run_folder, resume)
    with run.held(), StopRequest(watcher.note, at_once=True) as stop:
        saved = None
        if resume is not None:
            end_survivors(run, watcher)
            saved = saved_step(run, steps)
        progress = Progress(str(run.path), steps, step=saved or 0, after_step=saved or 0)
        keep_leg(run, progress)
        state, reason = "failed", ""
        try:
            _run(prepare(resolved, plan, run, saved, watcher), progress, watcher, stop)
            state, reason = ("stopped", stop.reason or "") if stop.requested else ("finished", "")
        except KeyboardInterrupt:
            state, reason = "stopped", stop.reason or "interrupted"
            _tell_how_to_go_on(run, watcher)
            raise
        except BaseException as error:
            reason = first_line(error)
            _keep_traceback(run)
            raise
        finally:
            run.update(state=state, reason=reason)
            keep_leg(run, progress)
            report = _report(run)
    return report


def _run(job: Job, progress: Progress, watcher: Watcher, stop: StopRequest) -> None:
    with progress.timed("start"):
        watcher.update(progress)
        fleet = Fleet(job.run, job.plan, job.resolved.config, watcher.last)
        stop.rearm()
    try:
        with progress.timed("start"):
            fleet.start(job.sources)
            frozen = Frozen(job.run, fleet)
        _tell_address(fleet.proxy_url, progress, watcher)
        stop.patient()
        loop = Loop(job, fleet, progress, watcher, stop)
        try:
            loop.run()
            frozen.prove()
        except ProcessEnded:
            raise
        except UserError:
            fleet.blame()
            raise
        finally:
            loop.close()
    finally:
        progress.stage = "stopping"
        watcher.update(progress)
        fleet.stop()


def _tell_address(url: str, progress: Progress, watcher: Watcher) -> None:
    progress.proxy = url
    watcher.note(f"The proxy answers: point OpenAI clients at {url}")


class Loop:
    """One run from its first step on. Weights have the number of the step that made them as version."""

    def __init__(self, job: Job, fleet: Fleet, progress: Progress, watcher: Watcher, stop: StopRequest) -> None:
        self.job, self.fleet, self.progress, self.watcher, self.stop = job, fleet, progress, watcher, stop
        self.config = job.resolved.config
        self.store = Store(job.run.store)
        self.scores = ScoreKeeper(fleet, self.store, self.config.loss, self.config.train.batch_size)
        self.keeper = Keeper(job, self.store, DumpWriter(job.run.dumps), open_sinks(job.run.metrics))
        self.version = job.first_step - 1
        self.saved = self.version
        fleet.meanwhile = self.scores.advance
        self._shown = 0.0

    def run(self) -> None:
        """Steps until the last one or a stop request; the last state is saved."""
        self.job.run.update(state="running")
        self._read_preference(self.version)
        self.fleet.start_users(self.version)
        for step in range(self.job.first_step, self.config.train.steps + 1):
            before = dict(self.progress.seconds)
            batch = self._collect()
            if batch is None:
                break
            self._step(step, batch, before)
            if self._held_long_enough():
                self.watcher.note(f"The preference holds: done after step {step}.")
                break
        if self.version > self.saved:
            self._save()

    def close(self) -> None:
        """Closes what the loop itself has open."""
        self.keeper.close()
        self.store.close()

    def _collect(self) -> list[Sample] | None:
        """The next batch; None when the run shall stop."""
        train, staleness = self.config.train, self.config.rollout.max_staleness
        with self.progress.timed("collect"):
            while not self.stop.requested:
                self.scores.advance()
                batch = self.store.take_batch(train.batch_size, staleness, self.version)
                if batch:
                    return batch
                self._show()
                self.fleet.check_alive()
                time.sleep(POLL_S)
        return None

    def _step(self, step: int, batch: list[Sample], before: dict[str, float]) -> None:
        self.scores.expect(batch)
        with self.progress.timed("pause"):
            self.fleet.pause()
        scores = self._complete_scores(batch)
        with self.progress.timed("train"):
            result = self.fleet.train_step(batch, scores)
        self.store.mark_trained([s.sample_id for s in batch], step)
        self.scores.forget()
        with self.progress.timed("sync"):
            self.fleet.push_weights(step)
        lags = [self.version - s.weight_version for s in batch]
        self.version = self.progress.step = self.progress.weight_version = step
        with self.progress.timed("dump"):
            self.keeper.dump(step, batch, scores, result)
        metrics = self.keeper.metrics(batch, scores, result, lags)
        if step % self.config.train.save_every == 0 or step == self.config.train.steps:
            self._save()
        if self.config.users is not None and (step % self.config.users.eval_every == 0 or step == self.config.train.steps):
            metrics |= self._reading(step)
        self._let_in(step)
        self.progress.metrics = {name: metrics.get(name) for name in ("loss/total", "loss/grpo", "loss/opd", "batch/reward")}
        asked = needs(self.config.loss)
        self.progress.opd_samples = (sum(asked.scores(sample.kind) for sample in batch), len(batch))
        spent = {f"seconds/{stage}": total - before.get(stage, 0.0) for stage, total in self.progress.seconds.items()}
        self.keeper.write(step, metrics | {name: value for name, value in spent.items() if value > 0})
        self.job.run.update(step=step, weight_version=step)
        keep_leg(self.job.run, self.progress)
        self._show(now=True)

    def _let_in(self, step: int) -> None:
        """Requests go on, unless the next batch waits already: more samples would only grow stale."""
        if step < self.config.train.steps and self.store.ready_count() < self.config.train.batch_size:
            self.fleet.resume(step)

    def _complete_scores(self, batch: list[Sample]) -> list[TeacherScores]:
        """The teacher's scores of the batch, at the student's ids too where the objective reads them.

        The student's old pass runs while the teacher still scores, unless it reads what the teacher found.
        """
        needs = self.scores.needs
        old = self._old_pass(batch, []) if needs.at_student and not needs.old_at_teacher else None
        with self.progress.timed("teacher"):
            scores = self.scores.of(batch)
        if not needs.at_student:
            return scores
        old = old or self._old_pass(batch, scores)
        with self.progress.timed("teacher"):
            return self.scores.at_student(scores, old)

    def _old_pass(self, batch: list[Sample], scores: list[TeacherScores]) -> dict[str, OldPass]:
        with self.progress.timed("old"):
            return self.fleet.old_pass(batch, scores)

    def _save(self) -> None:
        with self.progress.timed("save"):
            self.fleet.save(self.job.run.checkpoint(self.version), self.version)
            self.keeper.prune_checkpoints()
        self.saved = self.progress.last_save = self.version
        self.job.run.update(saved_step=self.version, saved_at=time.time())

    def _read_preference(self, step: int) -> None:
        if self.config.users is not None:
            self.keeper.write(step, self._reading(step))

    def _reading(self, step: int) -> dict[str, float]:
        with self.progress.timed("eval"):
            reading = self.fleet.read_preference()
        if reading is None:
            return {}
        rate, solved, tasks = reading
        self.progress.readings.append((step, rate, solved))
        return {"eval/preference_rate": rate, "eval/solved_rate": solved, "eval/tasks": tasks}

    def _held_long_enough(self) -> bool:
        users = self.config.users
        wanted = users.stop_after_held if users is not None else 0
        rates = [rate for _, rate, _ in self.progress.readings[-wanted:]]
        return users is not None and 0 < wanted <= len(rates) and min(rates) >= users.target_rate

    def _show(self, now: bool = False) -> None:
        if not now and time.monotonic() - self._shown < SHOW_EVERY_S:
            return
        self._shown = time.monotonic()
        self.progress.funnel = self.store.funnel().counts()
        if self.config.users is not None:
            self.progress.sessions = self.fleet.sessions()
        self.watcher.update(self.progress)


def _tell_how_to_go_on(run: RunFolder, watcher: Watcher) -> None:
    if command := going_on(run, "stopped"):
        watcher.note(f"Go on with {command}")


def _keep_traceback(run: RunFolder) -> None:
    with run.log("driver").open("a", encoding="utf-8") as log:
        log.write(traceback.format_exc())


def _report(run: RunFolder) -> Report:
    try:
        report = build_report(run)
        write_report(run, report)
    except OSError as error:
        raise UserError(f"The report of {run.path} can't be written: {error}.", "Free some space.") from error
    return report
