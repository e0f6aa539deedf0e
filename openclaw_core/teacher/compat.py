"""Student against teacher, before training: numbered checks, each with what was compared, where it was read, what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from openclaw_core.models.architecture import Architecture
from openclaw_core.teacher import model_checks, probes, statements, token_checks
from openclaw_core.teacher.pair import Outcome, Pair, Side, State, Use, read_side


@dataclass(frozen=True)
class Check:
    """One numbered check: what was compared, each side's value, where it was read, and what to do when it isn't ok."""

    number: int
    title: str
    state: State
    compared: str
    student: str
    teacher: str
    source: str
    finding: str
    remedy: str


@dataclass(frozen=True)
class Fact:
    """One fact of both architectures, each from that model's own checkpoint; same is None where one is unknown."""

    name: str
    student: str
    teacher: str
    same: bool | None


@dataclass(frozen=True)
class Report:
    """All checks in order, and the two architectures side by side."""

    student: str
    teacher: str
    facts: tuple[Fact, ...]
    checks: tuple[Check, ...]

    @property
    def problems(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.state == "problem")

    @property
    def warnings(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.state == "warning")


CHECKS: tuple[tuple[str, str, Callable[[Pair], Outcome]], ...] = (
    ("Student's checkpoint is whole", "tensors against its architecture, files against their index", model_checks.student_whole),
    ("Teacher's checkpoint is whole", "tensors against its architecture, files against their index", model_checks.teacher_whole),
    ("One rope base per model", "config, carried config, manifest, megatron's arguments", statements.rope_base),
    ("One architecture per model", "the same places, every other fact", statements.stated_alike),
    ("Token ids mean the same bytes", "the bytes of every id that both tokenizers have", token_checks.token_ids),
    ("Text is cut the same way", "merges, pre-tokenizer, normalizer, settings, added tokens' flags", token_checks.cuts),
    ("Probe texts become the same ids", f"the ids of {len(probes.TEXTS)} texts by either tokenizer", probes.probes),
    ("Special tokens", "ids that end a reply, special tokens of both", token_checks.special_tokens),
    ("Chat template", "the template's text", token_checks.chat_template),
    ("Every id has an embedding row", "largest token id, rows of the embedding", model_checks.embedding_rows),
    ("Vocabulary, real and padded", "rows, and rows padded for the tensor-parallel sizes", model_checks.vocabulary),
    ("Context length", "prompt + reply (+ hint for the teacher), max_position_embeddings", model_checks.context),
    ("Weights as converted", "SHA-256 of every tensor, and the manifest of convert-ckpt", model_checks.hashes),
    ("Dtype", "of the weights, and the one they are used in", model_checks.dtype),
    ("Parallel sizes divide the models", "heads and MLP width by TP, layers by PP", model_checks.parallel_sizes),
    ("The trainer builds both models", "family and rope scaling, those that the trainer has", model_checks.built),
)


def validate(
    student: str, teacher: str, use: Use | None = None, *, student_hf: str | None = None, teacher_hf: str | None = None
) -> Report:
    """Reads both models and runs every check. Paths are Hugging Face folders, torch_dist checkpoints or run folders.

    student_hf and teacher_hf name the folder with config and tokenizer for a torch_dist that carries none. Whatever is
    wrong with a checkpoint is in the report: nothing is raised for it.
    """
    pair = Pair(read_side("student", student, student_hf), read_side("teacher", teacher, teacher_hf), use or Use())
    checks = []
    for number, (title, compared, run) in enumerate(CHECKS, 1):
        found = run(pair)
        checks.append(Check(number, title, found.state, compared, *found.shown, found.source, found.finding, found.remedy))
    return Report(student, teacher, _facts(pair.student, pair.teacher), tuple(checks))


def _facts(student: Side, teacher: Side) -> tuple[Fact, ...]:
    a, b = student.architecture, teacher.architecture
    names = [*(item.name for item in dataclasses.fields(Architecture)), "parameters"]
    return tuple(Fact(name, _shown(a, name), _shown(b, name), _same(a, b, name)) for name in names)


def _same(a: Architecture | None, b: Architecture | None, name: str) -> bool | None:
    return None if a is None or b is None else getattr(a, name) == getattr(b, name)


def _shown(arch: Architecture | None, name: str) -> str:
    if arch is None:
        return "?"
    value = getattr(arch, name)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if name in ("parameters", "vocab") else f"{value:g}" if isinstance(value, float) else str(value)
