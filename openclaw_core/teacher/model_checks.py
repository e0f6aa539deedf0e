"""Checks of the two models: whole checkpoints, embedding rows, vocabularies, context, dtype, parallel sizes."""

from __future__ import annotations

from openclaw_core.checkpoint.names import MANIFEST
from openclaw_core.checkpoint.verify import hash_tensors
from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import Architecture, padded_vocab
from openclaw_core.models.buildable import buildable
from openclaw_core.teacher.pair import Outcome, Pair, Side, ok, reader_of, skipped

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
LOSSY = {("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float16")}
READS = ("folder", "config", "weights", "manifest", "arguments")
"""What is read of a checkpoint; one cause may be found by several."""
MOST_TOLD = 4
NO_ARCHITECTURE = "an architecture couldn't be read"


def student_whole(pair: Pair) -> Outcome:
    """Every tensor that the student's architecture needs is there, and no other."""
    return _whole(pair.student, 0)


def teacher_whole(pair: Pair) -> Outcome:
    """As student_whole."""
    return _whole(pair.teacher, 1)


def _whole(side: Side, column: int) -> Outcome:
    errors = list({str(side.errors[name]): side.errors[name] for name in READS if name in side.errors}.values())
    source = str(side.found.folder) if side.found else side.path
    count = f"{len(side.examined.mapping.hf)} tensors" if side.examined else "-"
    shown = (count, "") if column == 0 else ("", count)
    if errors:
        remedies = dict.fromkeys(remedy for error in errors for remedy in _remedies(error) if remedy)
        remedy = " ".join(remedies) or "Convert or fetch the checkpoint again."
        return Outcome("problem", shown, source, " ".join(map(_told, errors)), remedy)
    return ok(shown, source)


def hashes(pair: Pair) -> Outcome:
    """Where it is asked for, and convert-ckpt left hashes: every tensor must still be what it wrote."""
    if not pair.use.deep:
        return Outcome("skipped", finding="Not asked for.", remedy="--deep hashes every tensor that convert-ckpt wrote.")
    counts, wrong = [], []
    for side in pair.sides:
        if not (side.found and side.examined and side.manifest and side.manifest.sums):
            counts.append("no hashes")
            continue
        sums = hash_tensors(side.examined.mapping, reader_of(side.found))
        changed = [name for name, digest in side.manifest.sums.items() if sums.get(name) != digest]
        counts.append(f"{len(sums) - len(changed)} of {len(sums)} tensors")
        if changed:
            others = f" and {len(changed) - 1} more" if changed[1:] else ""
            wrong.append(f"The {side.role}'s {changed[0]}{others} changed since conversion.")
    shown = (counts[0], counts[1])
    source = "; ".join(str(side.found.root / MANIFEST) for side in pair.sides if side.found and side.manifest)
    if wrong:
        return Outcome("problem", shown, source, " ".join(wrong), "Convert again with --overwrite.")
    return ok(shown, source)


def _remedies(error: UserError) -> list[str]:
    """Those of its findings, where it has some."""
    return [remedy for _, remedy in error.findings[:MOST_TOLD]] if isinstance(error, Findings) else [error.remedy]


def _told(error: UserError) -> str:
    if not isinstance(error, Findings):
        return error.what
    details = [what for what, _ in error.findings]
    more = [f"... and {len(details) - MOST_TOLD} more."] if len(details) > MOST_TOLD else []
    return " ".join([error.what, *details[:MOST_TOLD], *more])


def embedding_rows(pair: Pair) -> Outcome:
    """Both models need a row for every id of the student's tokenizer, and for those of their own."""
    known = [(side, side.tokenizer, side.architecture) for side in pair.sides]
    student, teacher = (f"{t.size:,} ids, {a.vocab:,} rows" if t and a else "-" for _, t, a in known)
    source = pair.source("tokenizer.json", "config.json")
    wrong = [
        f"The {side.role} has {a.vocab:,} rows, its tokenizer {t.size:,} ids."
        for side, t, a in known
        if t and a and t.size > a.vocab
    ]
    ids, rows = known[0][1], known[1][2]
    if not wrong and ids and rows and ids.size > rows.vocab:
        wrong = [f"The student's tokenizer has {ids.size:,} ids, the teacher only {rows.vocab:,} rows."]
    if wrong:
        remedy = "Take tokenizer and weights of the same release."
        return Outcome("problem", (student, teacher), source, " ".join(wrong), remedy)
    return (
        ok((student, teacher), source) if all(t and a for _, t, a in known) else skipped("a tokenizer or config couldn't be read")
    )


def vocabulary(pair: Pair) -> Outcome:
    """Log-probs are normalised over the real rows, so both should have the same number."""
    a, b = pair.student.architecture, pair.teacher.architecture
    if a is None or b is None:
        return skipped(NO_ARCHITECTURE)
    shown = (_rows(pair.student, a, pair.use.student_tp), _rows(pair.teacher, b, pair.use.teacher_tp))
    source = pair.source("config.json")
    if a.vocab != b.vocab:
        finding = "The real sizes differ: log-probs are normalised over different sets of rows."
        remedy = "Harmless when the surplus rows are untrained padding of one tokenizer (as in Qwen2.5); else use one family."
        return Outcome("warning", shown, source, finding, remedy)
    return ok(shown, source)


def _rows(side: Side, arch: Architecture, tp: int) -> str:
    text = f"{arch.vocab:,} real, {padded_vocab(arch.vocab, tp=tp):,} at TP {tp}"
    if side.examined and side.found and side.found.kind == "torch_dist":
        return f"{text}, {side.examined.layout.padded:,} stored"
    return text


def context(pair: Pair) -> Outcome:
    """prompt + reply must fit both models; candidates whose hint doesn't fit the teacher on top are left out of training.

    Positions beyond those of a model with rope scaling may be meant: a plan takes them.
    """
    a, b = pair.student.architecture, pair.teacher.architecture
    if a is None or b is None:
        return skipped(NO_ARCHITECTURE)
    source, need = pair.source("config.json"), pair.use.prompt_and_reply
    if need is None:
        shown = (f"{a.max_position:,} positions", f"{b.max_position:,} positions")
        if b.max_position >= a.max_position:
            return ok(shown, source)
        finding = "The teacher's context is shorter than the student's, and hints come on top."
        return Outcome("warning", shown, source, finding, "Keep rollout.context_length below it; --profile checks this.")
    needs = (("student", need, a.max_position), ("teacher", need + pair.use.hint, b.max_position))
    shown = (f"{needs[0][1]:,} of {a.max_position:,}", f"{needs[1][1]:,} of {b.max_position:,}")
    short = [(role, tokens, arch) for (role, tokens, most), arch in zip(needs, (a, b), strict=True) if tokens > most]
    if not short:
        return ok(shown, source)
    hard = any(need > arch.max_position and arch.rope_scaling is None for arch in (a, b))
    told = (f"The {role} needs {tokens:,} tokens and has {arch.max_position:,} positions." for role, tokens, arch in short)
    finding = " ".join(told)
    if not hard and need <= b.max_position < need + pair.use.hint:
        finding += f" A candidate of more than {b.max_position:,} is left out of training."
    remedy = "Lower rollout.context_length or judge.max_tokens."
    return Outcome("problem" if hard else "warning", shown, source, finding, remedy)


def dtype(pair: Pair) -> Outcome:
    """Weights cast to a dtype with fewer bits of exponent or mantissa lose precision."""
    stored = [_dtypes(side) for side in pair.sides]
    if not all(stored):
        return skipped("the weights couldn't be read")
    wanted = DTYPES.get(pair.use.dtype or "", "")
    student, teacher = (", ".join(names) + (f" -> {wanted}" if wanted else "") for names in stored)
    source = "; ".join(str(side.found.folder) for side in pair.sides if side.found)
    lossy = [side.role for side, names in zip(pair.sides, stored, strict=True) if any((name, wanted) in LOSSY for name in names)]
    if lossy:
        finding = f"The {' and the '.join(lossy)} loses precision when cast to {wanted}."
        return Outcome("warning", (student, teacher), source, finding, "Set train.dtype to the weights' own, or accept it.")
    return ok((student, teacher), source)


def _dtypes(side: Side) -> list[str]:
    return sorted({str(name).removeprefix("torch.") for name in side.examined.dtypes.values()}) if side.examined else []


def parallel_sizes(pair: Pair) -> Outcome:
    """Tensor sizes must divide heads and MLP width, pipeline sizes the layers."""
    use = pair.use
    wrong: list[str] = []
    for side, tp, pp in ((pair.student, use.student_tp, use.student_pp), (pair.teacher, use.teacher_tp, use.teacher_pp)):
        arch = side.architecture
        if arch is None:
            return skipped(NO_ARCHITECTURE)
        facts = (
            ("heads", arch.heads, tp),
            ("k and v heads", arch.kv_heads, tp),
            ("MLP width", arch.ffn, tp),
            ("layers", arch.layers, pp),
        )
        wrong += [f"The {side.role}'s {name} ({value}) can't be split by {size}." for name, value, size in facts if value % size]
    shown = (f"TP {use.student_tp}, PP {use.student_pp}", f"TP {use.teacher_tp}, PP {use.teacher_pp}")
    source = pair.source("config.json")
    return Outcome("problem", shown, source, " ".join(wrong), "Choose sizes that divide them.") if wrong else ok(shown, source)


def built(pair: Pair) -> Outcome:
    """Conversion knows more families than the trainer builds, and rope scalings that it only carries."""
    archs = [side.architecture for side in pair.sides]
    student, teacher = (f"{arch.model_type}, rope {_rope_kind(arch)}" if arch else "-" for arch in archs)
    source = pair.source("config.json")
    reasons = [(side.role, *reason) for side in pair.sides if side.architecture for reason in buildable(side.architecture)]
    if reasons:
        finding = " ".join(f"The {role} can't be built. {what}" for role, what, _ in reasons)
        remedy = " ".join(dict.fromkeys(remedy for *_, remedy in reasons))
        return Outcome("problem", (student, teacher), source, finding, remedy)
    return ok((student, teacher), source) if all(archs) else skipped(NO_ARCHITECTURE)


def _rope_kind(arch: Architecture) -> str:
    return str(arch.rope_scaling["rope_type"]) if arch.rope_scaling else "plain"
