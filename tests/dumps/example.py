"""Step dumps computed from random logits by the formulas of docs/method.md, in plain numpy."""

from __future__ import annotations

import numpy as np

from openclaw_core.dumps.schema import DroppedHint, HintDump, SampleDump, StepDump, StepHeader

HINTS = ("Use capital letters.", "Please write in capital letters.", "The user wants capital letters in every reply.")


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def top_k(logprobs, k):
    ids = np.argsort(-logprobs, axis=-1, kind="stable")[..., :k]
    return ids, np.take_along_axis(logprobs, ids, -1)


def choose(selection, overlap, gap, spans):
    """k* [R] of overlap [C, R] and per-position gap [C, R]."""
    length = overlap.shape[1]
    if selection == "shortest":
        return np.zeros(length, int)
    if selection == "token_optimal":
        return overlap.argmax(0)
    chosen = np.zeros(length, int)
    for start, end in spans or [(0, length)]:
        totals = overlap[:, start:end].sum(1).astype(float)
        if selection == "signal_optimal":
            mean = gap[:, start:end].mean(1)
            totals[mean < 0.5 * mean.max()] = -1
        chosen[start:end] = totals.argmax()
    return chosen


def sample(rng, sample_id, *, subset, selection, k, vocab, c, candidates, length, spans=None):
    old = log_softmax(2 * rng.normal(size=(length, vocab)))
    teacher = log_softmax(old + rng.normal(size=(candidates, length, vocab)) * np.linspace(0.2, 2.0, candidates)[:, None, None])
    student_ids, student_logprobs = top_k(old, k)
    teacher_ids, teacher_logprobs = top_k(teacher, k)
    at_student = np.take_along_axis(teacher, np.broadcast_to(student_ids, (candidates, length, k)), -1)
    both = (teacher_ids[..., :, None] == student_ids[None, :, None, :]).any(-2)
    overlap = both.sum(-1)
    w_student = np.exp(student_logprobs) / np.exp(student_logprobs).sum(-1, keepdims=True)
    gap = (w_student * np.abs(at_student - student_logprobs)).sum(-1)
    k_star = choose(selection, overlap, gap, spans)
    rows = np.arange(length)
    ids = teacher_ids[k_star, rows] if subset == "teacher" else student_ids
    mask = both[k_star, rows] if subset == "overlap" else np.ones_like(ids, bool)
    support_student = np.take_along_axis(old, ids, -1)
    support_teacher = np.take_along_axis(teacher[k_star, rows], ids, -1)
    weights = np.where(mask, np.exp(support_student), 0)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    differences = np.clip(support_teacher - support_student, -c, c) * mask
    response = rng.integers(0, vocab, length)
    return SampleDump(
        sample_id=sample_id,
        turn_id=f"turn-of-{sample_id}",
        session_id="session-1",
        kind="opd+rl",
        reward=-1.0,
        weight_version=2,
        finish_reason="stop",
        verdict_votes=(-1, -1, None),
        next_state_role="user",
        next_state="In capital letters, please.",
        spans=spans,
        losses={"total": 0.35, "grpo": 0.1, "opd": 0.25},
        dropped_hints=(
            DroppedHint("Write LOUDLY, as if across a street" * 9, 12000, 1, "too_long_for_teacher", 5210, 4096),
            DroppedHint("Be nice.", 8, 2, "too short"),
        ),
        hints=tuple(HintDump(HINTS[i % 3], 2, "user", "In capital letters, please.") for i in range(candidates)),
        tensors={
            "response_ids": response,
            "loss_mask": np.ones(length),
            "student_ids": student_ids,
            "student_logprobs": student_logprobs,
            "sampled_logprobs": old[rows, response],
            "sampling_logprobs": old[rows, response] - 0.2,
            "engine_logprobs": old[rows, response] - 0.201,
            "entropy": -(np.exp(old) * old).sum(-1),
            "teacher_ids": teacher_ids,
            "teacher_logprobs": teacher_logprobs,
            "teacher_at_student": at_student,
            "overlap": overlap,
            "k_star": k_star,
            "support_ids": ids,
            "support_mask": mask,
            "support_student": support_student,
            "support_teacher": support_teacher,
            "differences": differences,
            "weights": weights,
            "advantages": differences * weights,
            "prompt_ids": rng.integers(0, vocab, 7),
        },
    )


def step(
    number=1,
    *,
    seed=0,
    subset="student",
    selection="sequence_optimal",
    k=4,
    vocab=48,
    c=1.0,
    candidates=(3, 1, 2),
    spans=None,
    length=9,
):
    rng = np.random.default_rng(seed + number)
    header = StepHeader(
        step=number,
        subset=subset,
        selection=selection,
        k=k,
        max_candidates=3,
        diff_clip=c,
        temperature=1.0,
        vocab=vocab,
        weight_version=number - 1,
        temperatures={"student": 1.0, "teacher": 1.0, "engine": 0.6},
    )
    samples = [
        sample(
            rng,
            f"{number}{'abcdefgh'[i]}-sample",
            subset=subset,
            selection=selection,
            k=k,
            vocab=vocab,
            c=c,
            candidates=count,
            length=length + i,
            spans=spans,
        )
        for i, count in enumerate(candidates)
    ]
    return StepDump(header, tuple(samples))
