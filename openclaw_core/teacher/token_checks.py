"""Checks of the two tokenizers: ids, cuts, special tokens, chat template."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_core.teacher.pair import Outcome, Pair, ok, skipped
from openclaw_core.teacher.tokens import Tokenizer

UNREAD = "a tokenizer couldn't be read"
SAME_RELEASE = "Expected between a base and a chat model; else check the releases."


def token_ids(pair: Pair) -> Outcome:
    """Every id that both have must be the same bytes; ids of one alone are told."""
    a, b = pair.student.tokenizer, pair.teacher.tokenizer
    if a is None or b is None:
        errors = [side.errors["tokenizer"] for side in pair.sides if "tokenizer" in side.errors]
        # A run makes all ids by the student's tokenizer; the teacher's is needed for this comparison alone.
        without = a is not None and pair.teacher.bare
        if not errors:
            return skipped(UNREAD)
        finding, source = " ".join(error.what for error in errors), pair.source("tokenizer.json")
        return Outcome("warning" if without else "problem", ("-", "-"), source, finding, errors[0].remedy)
    shown = (f"{len(a.tokens):,} ids up to {a.size - 1:,}", f"{len(b.tokens):,} ids up to {b.size - 1:,}")
    source = pair.source("tokenizer.json")
    different = sorted(number for number in a.tokens.keys() & b.tokens.keys() if a.tokens[number] != b.tokens[number])
    if different:
        first = ", ".join(f"{number}: {a.tokens[number]!r} and {b.tokens[number]!r}" for number in different[:3])
        finding = f"{len(different):,} ids differ ({first}{', ...' if len(different) > 3 else ''})."
        return Outcome("problem", shown, source, finding, "Use a teacher of the student's own model family and release.")
    alone = [_alone(role, own, other) for role, own, other in (("student", a, b), ("teacher", b, a))]
    if any(alone):
        remedy = "Harmless unless replies hold these tokens: the other model never learnt them."
        return Outcome("warning", shown, source, " ".join(filter(None, alone)), remedy)
    return ok(shown, source)


def _alone(role: str, own: Tokenizer, other: Tokenizer) -> str:
    ids = sorted(own.tokens.keys() - other.tokens.keys())
    names = ", ".join(repr(own.tokens[number].decode(errors="replace")) for number in ids[:3])
    return f"Only the {role} has {_count(len(ids), 'id')} ({names}{', ...' if len(ids) > 3 else ''})." if ids else ""


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def cuts(pair: Pair) -> Outcome:
    """Merges, pre-tokenizer, normalizer, the model's settings and the added tokens' flags decide how text becomes ids."""
    a, b = pair.student.tokenizer, pair.teacher.tokenizer
    if a is None or b is None:
        return skipped(UNREAD)
    source, shown = pair.source("tokenizer.json"), (f"{len(a.merges):,} merges", f"{len(b.merges):,} merges")
    found = [_merges(a.merges, b.merges), _flags(a.flags, b.flags)]
    found += [f"The {name} differ." for name in a.rules if a.rules[name] != b.rules[name]]
    if not any(found):
        return ok(shown, source)
    finding = f"{' '.join(filter(None, found))} The teacher reads ids that may be cut in a way it wasn't trained on."
    return Outcome(
        "warning", shown, source, finding, "Prefer a teacher of the same release; the next check says what it comes to."
    )


def _merges(a: Sequence[str], b: Sequence[str]) -> str:
    """Merges that one side lacks, else the first that has another rank."""
    alone = [(role, sorted(set(own) - set(other))) for role, own, other in (("student", a, b), ("teacher", b, a))]
    told = [
        f"Only the {role} has {_count(len(merges), 'merge')} ({merges[0]!r}{', ...' if merges[1:] else ''})."
        for role, merges in alone
        if merges
    ]
    if told or a == b:
        return " ".join(told)
    rank = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"The merges have another order, from the {rank + 1:,}. on."


def _flags(a: dict[str, tuple[bool, ...]], b: dict[str, tuple[bool, ...]]) -> str:
    """Added tokens of both that are found in a text in another way."""
    other = sorted(token for token in a.keys() & b.keys() if a[token] != b[token])
    names = f"{other[0]!r}{', ...' if other[1:] else ''}" if other else ""
    return f"{_count(len(other), 'added token')} matched in another way: {names}." if other else ""


def special_tokens(pair: Pair) -> Outcome:
    """The student must end its replies with ids it has; differences between the two are told."""
    a, b = pair.student.tokenizer, pair.teacher.tokenizer
    if a is None or b is None:
        return skipped(UNREAD)
    shown = (_ends(a), _ends(b))
    source = pair.source("generation_config.json", "tokenizer_config.json")
    if not a.eos_ids:
        finding = "Nothing ends a reply of the student."
        return Outcome("problem", shown, source, finding, "Set eos_token_id in its generation_config.json.")
    unknown = [number for number in a.eos_ids if number not in a.tokens]
    if unknown:
        finding = f"The student ends replies with ids that its tokenizer lacks: {', '.join(map(str, unknown))}."
        return Outcome("problem", shown, source, finding, "Take generation_config.json and tokenizer of one release.")
    eos = a.named.get("eos_token", "")
    if eos and a.ids.get(eos.encode()) not in a.eos_ids:
        finding = f"The student's eos_token {eos!r} isn't among the ids that end a reply."
        return Outcome("warning", shown, source, finding, "Make eos_token and eos_token_id agree.")
    if a.special != b.special or a.eos_ids != b.eos_ids:
        finding = "The two models' special tokens or end ids differ; the student's are used for both."
        return Outcome("warning", shown, source, finding, SAME_RELEASE)
    return ok(shown, source)


def _ends(tokenizer: Tokenizer) -> str:
    names = (f"{number} {tokenizer.tokens.get(number, b'?').decode(errors='replace')}" for number in tokenizer.eos_ids)
    return ", ".join(names) or "none"


def chat_template(pair: Pair) -> Outcome:
    """The student's template makes all prompts, those with hints too."""
    a, b = pair.student.tokenizer, pair.teacher.tokenizer
    if a is None or b is None:
        return skipped(UNREAD)
    shown = (_length(a.template), _length(b.template))
    source = pair.source("chat_template.jinja", "tokenizer_config.json")
    if not a.template:
        return Outcome("problem", shown, source, "The student has no chat template.", "Use a chat model as student.")
    if a.template != b.template:
        finding = "They differ; prompts with hints are made by the student's, so the teacher reads a form it may not know."
        return Outcome("warning", shown, source, finding, SAME_RELEASE)
    return ok(shown, source)


def _length(template: str | None) -> str:
    return f"{len(template):,} characters" if template else "none"
