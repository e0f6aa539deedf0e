"""One rank of the trained student as an actor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw_core.config.schema import Config
from openclaw_core.run.actors.rank import RankActor
from openclaw_core.types import Sample, TeacherScores

if TYPE_CHECKING:
    from openclaw_core.run.results import OldPass, StepResult


class StudentActor(RankActor):
    """Wraps run.trainer.Trainer; what all ranks must call together, the driver calls on all of them."""

    role = "actor"

    def setup(self, config: Config, source: str, point: tuple[str, int], checkpoint: str | None) -> int:
        """Builds the student from source and, on a resume, goes on from checkpoint; returns its step, else 0."""
        from openclaw_core.models.architecture import architecture_from_hf
        from openclaw_core.models.megatron.parallel import ParallelSizes
        from openclaw_core.run.trainer import Trainer

        role = config.partition.actor
        assert config.student.hf is not None
        self.trainer = Trainer(
            architecture_from_hf(config.student.hf),
            source,
            ParallelSizes(role.tensor_parallel, role.pipeline_parallel, role.context_parallel, role.sequence_parallel),
            self.rendezvous(point),
            loss=config.loss,
            optimizer=config.optimizer,
            train=config.train,
            sampling_temperature=config.rollout.temperature,
        )
        return self.trainer.load(checkpoint) if checkpoint else 0

    def old_pass(self, samples: Sequence[Sample], scores: Sequence[TeacherScores]) -> dict[str, OldPass]:
        """Trainer.old_pass."""
        return self.trainer.old_pass(samples, scores)

    def train_step(self, samples: Sequence[Sample], scores: Sequence[TeacherScores]) -> StepResult:
        """Trainer.train_step."""
        return self.trainer.train_step(samples, scores)

    def save(self, folder: str, step: int) -> None:
        """Trainer.save."""
        self.trainer.save(Path(folder), step)

    def export_hf(self, folder: str) -> None:
        """Trainer.export_hf."""
        self.trainer.export_hf(Path(folder))
