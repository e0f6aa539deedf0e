"""The nouns that all rooms share. Sequences of ids are tuples, so that a value can't change behind its owner."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Message = dict[str, Any]


class SampleKind(StrEnum):
    """Which of the three cases a sample is: what teaches it."""

    OPD_RL = "opd+rl"
    OPD = "opd"
    RL = "rl"


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of the student in a session, as the engine saw and sampled it.

    prompt_ids are what the engine was given and response_ids what it sampled (R ids, R log-probs); the text
    in reply is derived from them. weight_version is the version that sampled the reply.
    """

    turn_id: str
    session_id: str
    lineage_id: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    reply: Message
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response_logprobs: tuple[float, ...]
    finish_reason: str
    weight_version: int


@dataclass(frozen=True, slots=True)
class Hint:
    """Text taken from the next state by the judge that would have improved the turn."""

    text: str
    votes: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's scalar for a turn by vote; value is None when no vote was valid (which is not a 0)."""

    value: int | None
    votes: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """Teacher input for one hint. hint is None for the un-hinted sequence of an RL-only sample."""

    hinted_prompt_ids: tuple[int, ...]
    hint: Hint | None = None

    def token_ids(self, response_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The whole teacher input: the response ids are spliced in, never tokenised again."""
        return self.hinted_prompt_ids + response_ids


@dataclass(frozen=True, slots=True)
class Sample:
    """A turn ready for training, with K_i >= 1 candidates.

    loss_mask has one 0/1 per response id. step_spans are half-open ranges over the response for
    sequence_optimal selection; None means the whole response is one span.
    """

    sample_id: str
    turn_id: str
    kind: SampleKind
    reward: float
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response_logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    weight_version: int
    step_spans: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class TopK:
    """The K most probable ids of each response position: ids [..., R, K] int64, logprobs [..., R, K] float32.

    Sorted by falling log-prob, ties to the lower id; log-probs are over the real vocabulary.
    """

    ids: np.ndarray
    logprobs: np.ndarray


@dataclass(frozen=True, slots=True)
class TeacherScores:
    """What the teacher says of all K_i candidates of one sample.

    top holds the native top-K, [K_i, R, K]. at_student holds the teacher's log-probs at the student's top-K
    ids, [K_i, R, K], or None where the objective doesn't read them. tokens is how many the teacher forwarded for this
    sample; a prefix that it shares with another counts for one of them.
    """

    sample_id: str
    top: TopK
    at_student: np.ndarray | None = None
    tokens: int = 0
