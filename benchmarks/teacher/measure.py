"""One scenario on one device: the published schedule, every candidate whole, and shared prefixes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.teacher.workload import K, Shape
from openclaw_core.models.architecture import Architecture
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.logits import row_chunks
from openclaw_core.models.megatron.packing import SequenceIds, make_pack, plan_packs
from openclaw_core.models.megatron.parallel import ParallelSizes
from openclaw_core.models.megatron.prefix import added_tokens
from openclaw_core.teacher.scoring import TeacherScorer
from openclaw_core.types import Sample, TeacherScores


def make_scorer(shape: Shape) -> TeacherScorer:
    """The teacher on this device, with random weights, large enough for attention to matter and errors to show."""
    scorer = TeacherScorer(
        shape.arch, None, ParallelSizes(), parallel.host(1), vocab=shape.arch.vocab, k=K, temperature=1.0, budget=shape.budget,
        dtype="bf16" if shape.dtype == "bf16" else "fp32",
    )  # fmt: skip
    with torch.no_grad():
        for parameter in scorer.model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return scorer


def measure(scorer: TeacherScorer, samples: Sequence[Sample], rounds: int) -> dict[str, Any]:
    """Per schedule: tokens, seconds (median), FLOPs of the forward, peak memory; and how far the results lie apart."""
    sequences = [SequenceIds(c.hinted_prompt_ids, s.response_ids) for s in samples for c in s.candidates]
    passes = max(len(s.candidates) for s in samples)
    repeated = [
        SequenceIds(s.candidates[min(k, len(s.candidates) - 1)].hinted_prompt_ids, s.response_ids)
        for k in range(passes)
        for s in samples
    ]
    whole, replies = [len(s) for s in sequences], [len(s.response_ids) for s in sequences]
    out: dict[str, Any] = {}
    schedules: dict[str, tuple[Callable[[], Any], int, int]] = {
        "published": (
            lambda: _published(scorer, repeated, len(samples)),
            sum(map(len, repeated)),
            _flops(scorer.arch, repeated, [len(s) for s in repeated], [len(s) for s in repeated]),
        ),
        "whole": (lambda: _score(scorer, samples, False), sum(whole), _flops(scorer.arch, sequences, whole, replies)),
        "shared": (lambda: _score(scorer, samples, True), -1, _flops(scorer.arch, sequences, added_tokens(sequences), replies)),
    }
    scores: dict[str, Any] = {}
    for name, (work, tokens, flops) in schedules.items():
        seconds, peaks = [], []
        for _ in range(rounds + 1):
            before = scorer.tokens_forwarded
            took, peak, scores[name] = _timed(scorer, work)
            seconds.append(took)
            peaks.append(peak)
            forwarded = scorer.tokens_forwarded - before if tokens < 0 else tokens
            print(f"{name}: {took:.3f} s", flush=True)
        # The first round compiles and warms.
        out[name] = {
            "tokens": forwarded, "seconds": median(seconds[1:]), "rounds": seconds[1:], "flops": flops, "peak_bytes": max(peaks),
            "output_flops": 2 * scorer.arch.hidden * scorer.arch.vocab * (tokens if name == "published" else sum(replies)),
        }  # fmt: skip
    out["difference"] = _apart(scores["whole"], scores["shared"])
    return out


GROUPS = {
    "matrices": ("gemm", "nvjet", "cutlass", "xmma", "cublas"),
    "attention": ("flash", "fmha", "sdpa", "_attend_kernel"),
    "norms, rotation, activation": ("_norm_kernel", "_rotate_kernel", "_swiglu_kernel"),
    "log-sum-exp and top-K": ("_stats_kernel", "_topk_kernel"),
    "keys and values of shared prefixes, rows": ("index", "gather"),
    "copies": ("Memcpy", "Memset"),
}


def profiled(scorer: TeacherScorer, samples: Sequence[Sample]) -> dict[str, Any]:
    """Seconds of one pass of the shared schedule: by group of GPU kernels, of all of them, and by the clock."""
    import torch.profiler as profiler

    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA, profiler.ProfilerActivity.CPU]) as found:
        took, _, _ = _timed(scorer, lambda: _score(scorer, samples, True))
    groups = dict.fromkeys((*GROUPS, "other"), 0.0)
    names: dict[str, float] = {}
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            seconds = event.device_time_total / 1e6
            names[event.name] = names.get(event.name, 0.0) + seconds
            lower = event.name.lower()
            # A fused attention's name may hold the name of the library of its matrices.
            order = ("attention", *GROUPS)
            group = next((g for g in order if any(part.lower() in lower for part in GROUPS[g])), "other")
            groups[group] += seconds
    sequences = [SequenceIds(c.hinted_prompt_ids, s.response_ids) for s in samples for c in s.candidates]
    added = added_tokens(sequences)
    replies = [len(s.response_ids) for s in sequences]
    flops = {
        "matrices": dense_flops(scorer.arch, sum(added), sum(replies)),
        "attention": attention_flops(scorer.arch, sequences, added, replies),
    }
    longest = sorted(names.items(), key=lambda item: -item[1])[:25]
    return {
        "clock": took,
        "kernels": sum(groups.values()),
        "groups": groups,
        "flops": flops,
        "longest": {n[:120]: s for n, s in longest},
    }


def precision(scorer: TeacherScorer, sample: Sample) -> dict[str, dict[str, float]]:
    """How far apart log-probs lie, whole and with shared prefixes, in the model's dtype and in float32.

    At the ids that the first candidate's float32 top-K names.
    """
    told: dict[tuple[str, bool], np.ndarray] = {}
    ids = None
    kept = [p.detach().clone() for p in scorer.model.parameters()]
    for name in ("float32", "own dtype"):
        if name == "float32":
            scorer.model.float()
        else:
            for parameter, old in zip(scorer.model.parameters(), kept, strict=True):
                parameter.data = old
        for share in (False, True):
            scorer.share_prefixes = share
            (native,) = scorer.score([sample])
            ids = native.top.ids[0] if ids is None else ids
            told[name, share] = scorer.logprobs_at([(sample.sample_id, ids)])[sample.sample_id]
            scorer.forget([sample.sample_id])
    pairs = {
        "shared from whole, both in float32": (("float32", True), ("float32", False)),
        "whole from float32": (("own dtype", False), ("float32", False)),
        "shared from float32": (("own dtype", True), ("float32", False)),
        "shared from whole": (("own dtype", True), ("own dtype", False)),
    }
    gaps = {name: np.abs(told[one] - told[other]) for name, (one, other) in pairs.items()}
    return {name: {"mean": float(gap.mean()), "most": float(gap.max())} for name, gap in gaps.items()}


def matmul_rate(size: int = 8192, repeats: int = 20) -> float:
    """FLOP/s of a square bf16 product of random matrices on this GPU."""
    one, other = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(repeats):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        one @ other
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return 2 * size**3 / median(times[repeats // 2 :])


def _score(scorer: TeacherScorer, samples: Sequence[Sample], share: bool) -> list[TeacherScores]:
    scorer.share_prefixes = share
    found = scorer.score(samples)
    scorer.forget([s.sample_id for s in samples])
    return found


def _published(scorer: TeacherScorer, repeated: Sequence[SequenceIds], batch: int) -> None:
    """K_max passes over the whole batch, logits of prompt tokens included, plain top-K of log-probs; packed as ours are."""
    for start in range(0, len(repeated), batch):
        sequences = repeated[start : start + batch]
        groups = [[sequences[i] for i in group] for group in plan_packs([len(s) for s in sequences], scorer.budget)]
        every = ([SequenceIds(s.prompt_ids[:1], (*s.prompt_ids[1:], *s.response_ids)) for s in group] for group in groups)
        packs = (make_pack(pack, scorer.device) for pack in every)
        scorer._forward(len(groups), packs, lambda place, _, rows: _all_logits(scorer, rows, groups[place]))  # noqa: B023


@torch.no_grad()
def _all_logits(scorer: TeacherScorer, rows: torch.Tensor, sequences: Sequence[SequenceIds]) -> None:
    prompt, response, start = [], [], 0
    for sequence in sequences:
        last = start + len(sequence.prompt_ids) - 1
        prompt.append(torch.arange(start, last, device=rows.device))
        start += len(sequence) - 1
        response.append(torch.arange(last, start, device=rows.device))
    before, asked = (rows.index_select(0, torch.cat(places)) for places in (prompt, response))
    for part in row_chunks(before, scorer.model.columns):
        scorer.model.logits(before[part])
    for part in row_chunks(asked, scorer.model.columns):
        torch.log_softmax(scorer.model.logits(asked[part]).float() / scorer.temperature, -1).topk(scorer.k)


def _timed(scorer: TeacherScorer, work: Callable[[], Any]) -> tuple[float, int, Any]:
    cuda = scorer.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    # Processor time where there is no GPU: one thread works, and others on the machine don't count.
    clock = time.perf_counter if cuda else time.process_time
    begun = clock()
    answer = work()
    if cuda:
        torch.cuda.synchronize()
    return clock() - begun, torch.cuda.max_memory_allocated() if cuda else 0, answer


def _flops(arch: Architecture, sequences: Sequence[SequenceIds], added: Sequence[int], wanted: Sequence[int]) -> int:
    """Of the forward to the final hidden states of each sequence's last wanted tokens, where its last added are forwarded."""
    return dense_flops(arch, sum(added), sum(wanted)) + attention_flops(arch, sequences, added, wanted)


def dense_flops(arch: Architecture, tokens: int, wanted: int) -> int:
    """Of the layers' matrices; the last layer has queries, keys and values of all tokens, and the rest of the wanted alone."""
    embeddings = arch.vocab * arch.hidden * (1 if arch.tied else 2)
    layer = (arch.parameters - embeddings) // arch.layers
    mixed = arch.hidden * (arch.heads + 2 * arch.kv_heads) * arch.head_dim
    return 2 * (layer * (arch.layers - 1) * tokens + mixed * tokens + (layer - mixed) * wanted)


def attention_flops(arch: Architecture, sequences: Sequence[SequenceIds], added: Sequence[int], wanted: Sequence[int]) -> int:
    """Of each sequence's last added tokens over all of it; in the last layer of its last wanted tokens."""

    def pairs(counts: Sequence[int]) -> int:
        return sum(own * (len(s) - own) + own * (own + 1) // 2 for s, own in zip(sequences, counts, strict=True))

    return 4 * arch.heads * arch.head_dim * ((arch.layers - 1) * pairs(added) + pairs(wanted))


def _apart(one: list[TeacherScores], other: list[TeacherScores]) -> dict[str, float]:
    """Largest difference of log-probs where both name the same id, and the share of places where they do."""
    same = np.concatenate([(a.top.ids == b.top.ids).ravel() for a, b in zip(one, other, strict=True)])
    gaps = np.concatenate([np.abs(a.top.logprobs - b.top.logprobs).ravel() for a, b in zip(one, other, strict=True)])
    return {"logprob": float(gaps[same].max()), "same_ids": float(same.mean())}
