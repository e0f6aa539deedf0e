"""One rank of the frozen teacher as an actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from openclaw_core.config.schema import Config
from openclaw_core.run.actors.rank import RankActor
from openclaw_core.types import Sample, TeacherScores


class TeacherActor(RankActor):
    """Wraps teacher.scoring.TeacherScorer."""

    role = "teacher"

    def setup(self, config: Config, source: str, point: tuple[str, int]) -> None:
        """Loads the teacher from source, torch_dist or a Hugging Face folder, with the architecture of its own."""
        from openclaw_core.models.architecture import architecture_from_hf
        from openclaw_core.models.megatron.parallel import ParallelSizes
        from openclaw_core.run.sources import teacher_architecture
        from openclaw_core.teacher.scoring import TeacherScorer

        role = config.partition.teacher
        assert config.student.hf is not None
        self.scorer = TeacherScorer(
            teacher_architecture(config),
            source,
            ParallelSizes(role.tensor_parallel, role.pipeline_parallel, role.context_parallel, role.sequence_parallel),
            self.rendezvous(point),
            vocab=architecture_from_hf(config.student.hf).vocab,
            k=config.loss.k,
            temperature=config.loss.temperature,
            budget=config.train.max_tokens_per_device,
            dtype=config.train.dtype,
            context_length=config.rollout.teacher_context_length,
            seed=config.train.seed,
        )

    def score(self, samples: Sequence[Sample], candidates: Literal["all", "first"]) -> list[TeacherScores]:
        """TeacherScorer.score."""
        return self.scorer.score(samples, candidates=candidates)

    def logprobs_at(self, requests: Sequence[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """TeacherScorer.logprobs_at."""
        return self.scorer.logprobs_at(requests)

    def forget(self, sample_ids: Sequence[str]) -> None:
        """TeacherScorer.forget."""
        self.scorer.forget(sample_ids)

    def weights_hash(self) -> str:
        """TeacherScorer.weights_hash."""
        return self.scorer.weights_hash()
