"""What a run keeps of each step: the dump, the metrics, and the newest checkpoints."""

from __future__ import annotations

import hashlib
import shutil
import time
from typing import Any

import numpy as np

from openclaw_core.dumps.schema import DroppedHint, HintDump, SampleDump, StepDump, StepHeader
from openclaw_core.dumps.writer import DumpWriter
from openclaw_core.loss.divergence import DIVERGENCES
from openclaw_core.loss.needs import needs
from openclaw_core.rollout.dispatch import TOO_LONG
from openclaw_core.rollout.store import Store
from openclaw_core.rollout.template import text_of
from openclaw_core.run.launch import Job
from openclaw_core.run.results import StepResult
from openclaw_core.teacher.schedule import published_tokens, whole_tokens
from openclaw_core.track.metrics import by_kind
from openclaw_core.track.sinks import Sinks
from openclaw_core.types import Sample, SampleKind, TeacherScores

EXCERPT = 400
SHORT_REPLY = 8


class Keeper:
    """Writes into the run folder; the store is only read."""

    def __init__(self, job: Job, store: Store, dumps: DumpWriter, sinks: Sinks) -> None:
        self.job, self.store, self.dumps, self.sinks = job, store, dumps, sinks
        self.config = job.resolved.config
        tokenizer = job.run.tokenizer()
        self.tokenizer_hash = hashlib.sha256(tokenizer.read_bytes()).hexdigest() if tokenizer else ""

    def dump(self, step: int, batch: list[Sample], scores: list[TeacherScores], result: StepResult) -> None:
        """The dump of a step, which inspect-candidates reads."""
        by_sample = {s.sample_id: s for s in scores}
        samples = tuple(self._sample(s, by_sample.get(s.sample_id), result) for s in batch)
        self.dumps.write(StepDump(self._header(step), samples))

    def _header(self, step: int) -> StepHeader:
        loss, rollout = self.config.loss, self.config.rollout
        arch = self.job.plan.architectures["student"]
        return StepHeader(
            step=step,
            subset=loss.subset,
            selection=loss.selection,
            k=loss.k,
            max_candidates=loss.max_candidates,
            diff_clip=loss.diff_clip if DIVERGENCES.get(loss.divergence).surrogate else 0.0,
            temperature=loss.temperature,
            vocab=arch.vocab if arch else 0,
            weight_version=step - 1,
            tail=loss.tail,
            w_rl=loss.w_rl,
            w_opd=loss.w_opd,
            eps_clip=loss.eps_clip,
            eps_clip_high=loss.eps_clip_high,
            opd_on_rl_only=loss.opd_on_rl_only,
            divergence=loss.divergence,
            temperatures={"student": loss.temperature, "teacher": loss.temperature, "engine": rollout.temperature},
            tokenizer_hash=self.tokenizer_hash,
            teacher=str(self.job.sources.teacher),
            created=time.time(),
        )

    def _sample(self, sample: Sample, scores: TeacherScores | None, result: StepResult) -> SampleDump:
        tensors: dict[str, np.ndarray] = {
            "response_ids": np.asarray(sample.response_ids),
            "loss_mask": np.asarray(sample.loss_mask),
            "engine_logprobs": np.asarray(sample.response_logprobs),
            "prompt_ids": np.asarray(sample.prompt_ids),
            **result.dumps.get(sample.sample_id, {}),
        }
        if scores is not None:
            ids, logprobs = scores.top.ids, scores.top.logprobs
            tensors |= {"teacher_ids": np.where(np.isneginf(logprobs), -1, ids), "teacher_logprobs": logprobs}
            if scores.at_student is not None:
                tensors["teacher_at_student"] = scores.at_student
        record = self.store.turn(sample.turn_id)
        role, text = _excerpt(record.next_state if record else None)
        hints = tuple(
            HintDump(
                c.hint.text if c.hint else None, c.hint.votes if c.hint else 0, role if c.hint else "", text if c.hint else ""
            )
            for c in sample.candidates
        )
        return SampleDump(
            sample_id=sample.sample_id,
            turn_id=sample.turn_id,
            kind=sample.kind.value,
            reward=sample.reward,
            hints=hints,
            tensors=tensors,
            session_id=record.turn.session_id if record else "",
            weight_version=sample.weight_version,
            finish_reason=record.turn.finish_reason if record else "",
            verdict_votes=tuple(vote.value for vote in self.store.votes(sample.turn_id, "verdict")),
            next_state_role=role,
            next_state=text,
            spans=sample.step_spans,
            losses=dict(result.losses.get(sample.sample_id, {})),
            dropped_hints=self._dropped(sample.turn_id),
        )

    def _dropped(self, turn_id: str) -> tuple[DroppedHint, ...]:
        """Hints of the turn that became no candidate; the store's events know how long those were that the teacher can't read."""
        sizes = {event["detail"]["hint"]: event["detail"] for event in self.store.events(subject=turn_id, kind=TOO_LONG)}
        left = [hint for hint in self.store.hints(turn_id) if not hint.accepted]
        return tuple(
            DroppedHint(
                hint.text[:EXCERPT], len(hint.text), hint.votes, hint.reason or "",
                sizes.get(hint.text, {}).get("tokens"), sizes.get(hint.text, {}).get("limit"),
            )
            for hint in left
        )  # fmt: skip

    def metrics(self, batch: list[Sample], scores: list[TeacherScores], result: StepResult, lags: list[int]) -> dict[str, Any]:
        """One step's metrics, by the names of track.metrics."""
        kinds = [s.kind for s in batch]
        judged = [s.reward for s in batch if s.kind is not SampleKind.OPD]
        lengths = [len(s.response_ids) for s in batch]
        replies = [s.response_ids for s in batch if len(s.response_ids) <= SHORT_REPLY]
        gaps = [
            float(np.abs(arrays["sampling_logprobs"] - np.asarray(s.response_logprobs)).max())
            for s in batch
            if (arrays := result.dumps.get(s.sample_id)) is not None
        ]
        funnel = {f"funnel/{k}": v for k, v in self.store.funnel().counts().items() if k != "open"}
        own = {
            "loss/grad_norm": result.grad_norm,
            "loss/lr": self.config.optimizer.lr,
            "batch/samples": len(batch),
            "batch/opd_rl": kinds.count(SampleKind.OPD_RL),
            "batch/opd": kinds.count(SampleKind.OPD),
            "batch/rl": kinds.count(SampleKind.RL),
            "batch/reward": sum(judged) / len(judged) if judged else None,
            "batch/response_tokens": sum(lengths) / len(lengths),
            "batch/response_tokens_max": max(lengths),
            "batch/short_repeats": sum(replies.count(r) > 1 for r in replies),
            "batch/staleness": sum(lags) / len(lags),
            "batch/staleness_max": max(lags),
            "batch/tokens": sum(sum(s.loss_mask) for s in batch),
            "weights/version": self.job.run.read().step + 1,
        }
        if gaps:
            own["gap/engine_max"] = max(gaps)
        if self.config.loss.w_opd > 0:
            asked = needs(self.config.loss)
            scored = [s for s in batch if asked.scores(s.kind)]
            own["teacher/tokens"] = sum(s.tokens for s in scores)
            own["teacher/tokens_whole"] = whole_tokens(scored, first_only=asked.candidates == "first")
            own["teacher/tokens_published"] = published_tokens(batch)
        return {**by_kind(result.metrics), **own, **funnel}

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """One line of metrics.jsonl."""
        self.sinks.write(step, metrics)

    def prune_checkpoints(self) -> None:
        """Keeps the newest checkpoints."""
        run, keep = self.job.run, self.config.train.keep_checkpoints
        for step in run.checkpoint_steps()[:-keep]:
            shutil.rmtree(run.checkpoint(step))

    def close(self) -> None:
        """Closes the sinks."""
        self.sinks.close()


def _excerpt(next_state: Any) -> tuple[str, str]:
    if not next_state:
        return "", ""
    return str(next_state[0].get("role", "")), text_of(next_state[0].get("content"))[:EXCERPT]
