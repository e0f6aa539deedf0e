"""How many tokens a teacher forwards for the same samples by other schedules than ours. Counts only, no torch."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_core.types import Sample


def whole_tokens(samples: Sequence[Sample], *, first_only: bool = False) -> int:
    """Every real candidate forwarded from its first token to its last; with first_only each sample's first alone."""
    return sum(
        len(candidate.hinted_prompt_ids) + len(sample.response_ids)
        for sample in samples
        for candidate in (sample.candidates[:1] if first_only else sample.candidates)
    )


def published_tokens(samples: Sequence[Sample]) -> int:
    """The published loop's: as many whole passes over the batch as its largest K_i, fewer candidates filled by repetition."""
    passes = max((len(sample.candidates) for sample in samples), default=0)
    return sum(
        len(sample.candidates[min(k, len(sample.candidates) - 1)].hinted_prompt_ids) + len(sample.response_ids)
        for sample in samples
        for k in range(passes)
    )
