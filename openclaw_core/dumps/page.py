"""One self-contained page of a step's samples: the view of inspect-candidates for a browser, without anything from elsewhere."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from ..errors import UsageError
from ..track.jsonl import dumps
from .inspect import Filters, list_samples, show_sample, view_record
from .reader import DumpReader
from .tokens import TokenTexts

MOST_POSITIONS = 4000
"""Positions on a page over all samples; of longer replies those with the largest signal are shown."""


def step_page(reader: DumpReader, step: int, texts: TokenTexts, filters: Filters, sample_id: str | None = None) -> str:
    """HTML of the samples of a step that pass the filters, or of one sample. Raises UsageError where none passes."""
    ids = [row.sample_id for row in list_samples(reader, step, filters, texts.last_id)]
    if sample_id is not None:
        ids = [reader.sample(step, sample_id).sample_id]
    if not ids:
        raise UsageError(f"No sample of step {step} passes the filters.", "Loosen --kind, --hint-contains or --min-overlap.")
    share = max(MOST_POSITIONS // len(ids), 20)
    views = [_view(reader, step, one, texts, share) for one in ids]
    body = {"step": step, "samples": views, "problems": [str(problem) for problem in reader.problems]}
    template = files("openclaw_core.dumps").joinpath("page.html").read_text("utf-8")
    return template.replace("__DATA__", _for_script(body)).replace("__STEP__", str(step))


def _view(reader: DumpReader, step: int, sample_id: str, texts: TokenTexts, most: int) -> dict[str, Any]:
    view = show_sample(reader, step, sample_id, texts, sort="signal", limit=most)
    view.positions.sort(key=lambda one: one.t)
    return view_record(view)


def _for_script(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return dumps(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
