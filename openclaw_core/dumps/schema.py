"""What a step dump holds.

Axes: R response positions, K ids of a top-K, C candidates that the teacher scored (the first C of a sample: some objectives
read only the first), S ids of the support, P prompt ids. Ids below 0 fill places that hold no id.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

import numpy as np

SCHEMA_VERSION = 1

TENSORS: dict[str, tuple[str, str, str]] = {
    "response_ids": ("R", "int32", "ids that were sampled"),
    "loss_mask": ("R", "uint8", "1 where the position is trained"),
    "student_ids": ("R K", "int32", "S^q: the old student's top-K ids"),
    "student_logprobs": ("R K", "float32", "ell_old at student_ids"),
    "sampled_logprobs": ("R", "float32", "ell_old at the sampled id, from the trainer"),
    "sampling_logprobs": ("R", "float32", "the same at the sampling temperature: what an engine would report"),
    "engine_logprobs": ("R", "float32", "log-prob of the sampled id as the engine gave it"),
    "entropy": ("R", "float32", "entropy of the old student, nats"),
    "teacher_ids": ("C R K", "int32", "S^p: every candidate's top-K ids"),
    "teacher_logprobs": ("C R K", "float32", "ell_T at teacher_ids"),
    "teacher_at_student": ("C R K", "float32", "ell_T at student_ids"),
    "student_at_teacher": ("C R K", "float32", "ell_old at teacher_ids"),
    "overlap": ("C R", "int32", "O: size of the intersection of S^q and S^p"),
    "k_star": ("R", "int32", "chosen candidate"),
    "support_ids": ("R S", "int32", "ids of the support"),
    "support_mask": ("R S", "uint8", "1 where the entry is in the support; the tail bin is an entry with id -1"),
    "support_student": ("R S", "float32", "ell_old at support_ids"),
    "support_teacher": ("R S", "float32", "ell_T of k_star at support_ids, before clipping"),
    "differences": ("R S", "float32", "d: clipped difference of log-probs, teacher - student"),
    "weights": ("R S", "float32", "w: softmax of ell_old over the support"),
    "advantages": ("R S", "float32", "A = d * w"),
    "prompt_ids": ("P", "int32", "ids that the engine was given"),
}
OPD_TENSORS = (
    "student_at_teacher",
    "overlap",
    "k_star",
    "support_ids",
    "support_mask",
    "support_student",
    "support_teacher",
    "differences",
    "weights",
    "advantages",
)
"""What a sample without an OPD term (no teacher_ids) can't have: in a packed batch its rows hold fillers there."""
REQUIRED_TENSORS = ("response_ids", "loss_mask")


@dataclass(frozen=True, slots=True)
class StepHeader:
    """What a reader must know to read a step's numbers without the configuration.

    tail is "none" (log-probs of the top-K are used as they are) or "bin" (the rest of the probability is one more bin, whose id
    is -1 in support_ids). w is renormalised over the support, log-probs never are. temperatures names the temperature of each
    source of log-probs. diff_clip is 0 where nothing is clipped, as under a divergence other than the clipped surrogate, whose
    samples have no weights, differences and advantages. vocab is the size of the real vocabulary; ids from vocab on are padding.
    """

    step: int
    subset: str
    selection: str
    k: int
    max_candidates: int
    diff_clip: float
    temperature: float
    vocab: int
    weight_version: int
    tail: str = "none"
    w_rl: float = 1.0
    w_opd: float = 1.0
    eps_clip: float = 0.2
    eps_clip_high: float = 0.28
    opd_on_rl_only: str = "skip"
    divergence: str = "reverse_kl"
    temperatures: dict[str, float] = field(default_factory=dict)
    tokenizer_hash: str = ""
    teacher: str = ""
    created: float = 0.0


@dataclass(frozen=True, slots=True)
class HintDump:
    """A candidate's hint, and the part of the next state that it rests on. text is None for the un-hinted candidate."""

    text: str | None
    votes: int = 0
    next_state_role: str = ""
    next_state: str = ""


@dataclass(frozen=True, slots=True)
class DroppedHint:
    """A hint of the judge that became no candidate. text is its beginning, characters the length of all of it.

    reason is the store's; tokens (hinted prompt and reply) and limit are there where the teacher can't read so many.
    """

    text: str
    characters: int
    votes: int
    reason: str
    tokens: int | None = None
    limit: int | None = None

    @property
    def why(self) -> str:
        """The reason with its numbers."""
        if self.tokens is None:
            return self.reason
        return f"{self.reason}: {self.tokens} tokens with the reply, the teacher reads {self.limit}"


@dataclass(frozen=True, slots=True)
class SampleDump:
    """One trained sample. hints has one entry per candidate; tensors holds arrays by the names of TENSORS, absent where unknown.

    dropped_hints are those that became no candidate; None where that isn't known: a dump from before they were kept.
    finish_reason, verdict_votes and next_state are what the store knew; losses are the sample's masked means over
    positions: total, and grpo and opd before their weights where computed.
    """

    sample_id: str
    turn_id: str
    kind: str
    reward: float
    hints: tuple[HintDump, ...]
    tensors: dict[str, np.ndarray] = field(repr=False)
    session_id: str = ""
    weight_version: int = 0
    finish_reason: str = ""
    verdict_votes: tuple[int | None, ...] = ()
    next_state_role: str = ""
    next_state: str = ""
    spans: tuple[tuple[int, int], ...] | None = None
    losses: dict[str, float] = field(default_factory=dict)
    dropped_hints: tuple[DroppedHint, ...] | None = None

    def get(self, name: str) -> np.ndarray | None:
        """The named tensor, or None where this dump has none."""
        return self.tensors.get(name)

    @property
    def length(self) -> int:
        """R."""
        return int(self.tensors["response_ids"].shape[0])

    @property
    def candidates(self) -> int:
        """K_i, the number of real candidates, scored or not."""
        return len(self.hints)


@dataclass(frozen=True, slots=True)
class StepDump:
    """One optimizer step: its header and its samples in batch order."""

    header: StepHeader
    samples: tuple[SampleDump, ...]


def step_file(step: int) -> str:
    """Name of the file of a step."""
    return f"step-{step:06d}.safetensors"


def sample_record(sample: SampleDump) -> dict[str, Any]:
    """What the index says of a sample: everything but its tensors."""
    return {**plain_record(sample), "R": sample.length, "candidates": sample.candidates}


def plain_record(sample: SampleDump) -> dict[str, Any]:
    """The fields of a sample but its tensors."""
    record = {item.name: getattr(sample, item.name) for item in fields(sample) if item.name != "tensors"}
    dropped = sample.dropped_hints
    return {
        **record,
        "hints": [asdict(hint) for hint in sample.hints],
        "dropped_hints": None if dropped is None else [asdict(hint) for hint in dropped],
    }


def index_record(dump: StepDump) -> dict[str, Any]:
    """The index line of a step; also kept inside its file, so that each can be read without the other."""
    return {
        "schema": SCHEMA_VERSION,
        "file": step_file(dump.header.step),
        **asdict(dump.header),
        "samples": [sample_record(sample) for sample in dump.samples],
    }


def header_of(record: dict[str, Any]) -> StepHeader:
    """The header of an index record; raises ValueError naming what is missing or of another type."""
    return StepHeader(**_known(record, StepHeader))


def sample_of(record: dict[str, Any], tensors: dict[str, np.ndarray]) -> SampleDump:
    """A sample of its index record and its tensors; raises ValueError naming what is missing."""
    known = _known({**record, "tensors": tensors}, SampleDump)
    spans, dropped = record.get("spans"), record.get("dropped_hints")
    return SampleDump(
        **{
            **known,
            "hints": tuple(HintDump(**_known(hint, HintDump)) for hint in record.get("hints", ())),
            "verdict_votes": tuple(record.get("verdict_votes") or ()),
            "dropped_hints": None if dropped is None else tuple(DroppedHint(**_known(hint, DroppedHint)) for hint in dropped),
            "spans": None if spans is None else tuple((int(start), int(end)) for start, end in spans),
        }
    )


_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "dict[str, float]": (dict,)}


def _known(record: dict[str, Any], cls: type) -> dict[str, Any]:
    """The entries of record that cls has (others, of a later minor form, are ignored); a null number is read as nan."""
    if not isinstance(record, dict):
        raise ValueError(f"{cls.__name__} is no object")
    known: dict[str, Any] = {}
    for item in fields(cls):
        if item.name not in record:
            if item.default is MISSING and item.default_factory is MISSING:
                raise ValueError(f"{cls.__name__} has no {item.name}")
            continue
        value = record[item.name]
        if value is None and item.type == "float":
            value = float("nan")
        wanted = (list, type(None)) if str(item.type).startswith("tuple[") else _TYPES.get(str(item.type))
        if wanted and (not isinstance(value, wanted) or isinstance(value, bool)):
            raise ValueError(f"{cls.__name__} has {item.name} {value!r}, not of type {item.type}")
        known[item.name] = value
    return known
