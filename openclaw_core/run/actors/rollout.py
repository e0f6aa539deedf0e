"""The proxy and the capture as an actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openclaw_core.config.schema import Config
from openclaw_core.errors import UserError
from openclaw_core.run.actors.process import enter
from openclaw_core.run.runfolder import RunFolder


class RolloutActor:
    """Wraps rollout.service.RolloutService."""

    def __init__(self, run: RunFolder, config: Config) -> None:
        enter(run, "proxy", 0)
        self.run, self.config = run, config

    def start(self, engine_urls: Sequence[str], judge_url: str, version: int, ready_timeout_s: float) -> str:
        """Serves; returns the address for OpenAI clients once an engine generates and the judge answers a probe."""
        from openclaw_core.rollout.service import RolloutService
        from openclaw_core.run.sources import teacher_architecture

        assert self.config.student.hf is not None
        self.service = RolloutService.from_config(
            self.config,
            store_path=self.run.store,
            engine_urls=engine_urls,
            judge_url=judge_url,
            tokenizer_folder=self.config.student.hf,
            teacher_positions=teacher_architecture(self.config).max_position if self.config.loss.w_opd > 0 else None,
        )
        self.service.start()
        self.service.set_weight_version(version)
        self.service.probe_judge()
        if not self.service.wait_ready(ready_timeout_s):
            raise UserError(f"no engine generated a token within {ready_timeout_s:.0f} s.", "Look into logs/ of the run folder.")
        return self.service.url

    def pause(self, drain_s: float) -> int:
        """RolloutService.pause."""
        return self.service.pause(drain_s)

    def resume(self, version: int) -> None:
        """Lets requests in again; they are answered by weights of this version."""
        self.service.set_weight_version(version)
        self.service.resume()

    def status(self) -> dict[str, Any]:
        """RolloutService.status."""
        return self.service.status()

    def stop(self, drain_s: float) -> tuple[int, int]:
        """Drains; returns the requests that were cut and the closed turns that wait for the judge."""
        stopped = self.service.stop(drain_s)
        return stopped.cut_requests, stopped.unjudged_turns
