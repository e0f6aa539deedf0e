"""What a run that goes on starts from, and whether that can be used: looked at before anything starts or is written."""

from __future__ import annotations

import json
from pathlib import Path

from openclaw_core.errors import UsageError, UserError
from openclaw_core.rollout.store import Store
from openclaw_core.run.runfolder import RunFolder

COMPLETE = "trainer.json"


def saved_step(run: RunFolder, steps: int) -> int:
    """The step of the newest checkpoint, 0 where there is none.

    Raises UsageError where steps lies before it, and UserError where none of the run's steps is left, or where that checkpoint or
    the store is damaged.
    """
    saved = run.checkpoint_steps()
    newest = saved[-1] if saved else 0
    if newest > steps:
        what = f"The run {run.name} stands at step {newest}, and train.steps={steps} lies before that."
        raise UsageError(what, f"Go on with --set train.steps=N, N more than {newest}.")
    if newest == steps:
        raise UserError(f"The run {run.name} has made all of its {steps} steps.", "Add steps with --set train.steps=N to go on.")
    if newest:
        try:
            check_complete(run.checkpoint(newest))
        except UserError as error:
            before = f"step {saved[-2]}" if len(saved) > 1 else "the start"
            raise UserError(error.what, f"Move that folder away to go on from {before}.") from None
    if run.store.exists():
        Store(run.store, read_only=True).close()
    return newest


def check_complete(folder: Path) -> None:
    """UserError unless folder is a checkpoint that the trainer finished and that nobody damaged (by the files' sizes)."""
    try:
        files = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} isn't a complete checkpoint ({COMPLETE}: {error}).", "Resume from an older step.") from None
    wrong = [n for n, size in files.items() if not (folder / n).is_file() or (folder / n).stat().st_size != size]
    if wrong:
        raise UserError(f"{folder} is damaged: {', '.join(wrong[:4])} missing or of another size.", "Resume from an older step.")
