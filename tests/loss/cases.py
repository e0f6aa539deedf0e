"""Loads the golden cases, and runs any case through the whole room: rows, old pass, targets, objective."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from openclaw_core.config.schema import Loss
from openclaw_core.loss.logprobs import row_stats
from openclaw_core.loss.needs import needs
from openclaw_core.loss.objective import objective
from openclaw_core.loss.rows import pack_rows
from openclaw_core.loss.targets import build_targets
from openclaw_core.loss.teacher_rows import pack_teacher
from openclaw_core.loss.tensors import map_tensors
from openclaw_core.types import Candidate, Sample, SampleKind, TeacherScores, TopK
from openclaw_core.vocab import VocabShard

GOLDEN = Path(__file__).with_name("golden")
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
CELLS = [
    (subset, rule) for subset in ("student", "teacher", "overlap") for rule in ("shortest", "token_optimal", "sequence_optimal")
]


@dataclass
class Part:
    """One sample: current and old logits [R, V], teacher [K_i, R, V], tokens, mask and advantages [R]."""

    current: torch.Tensor
    old: torch.Tensor
    teacher: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor
    spans: tuple[tuple[int, int], ...] | None = None
    kind: SampleKind = SampleKind.OPD_RL
    grads: dict[str, torch.Tensor] = field(default_factory=dict)

    def sample(self, index: int) -> Sample:
        return Sample(
            sample_id=f"s{index}",
            turn_id=f"t{index}",
            kind=self.kind,
            reward=0.0,
            prompt_ids=(0,),
            response_ids=tuple(self.tokens.tolist()),
            response_logprobs=tuple(self.old_logprobs().tolist()),
            loss_mask=tuple(int(x) for x in self.mask.tolist()),
            candidates=(Candidate((0,)),) * len(self.teacher),
            weight_version=0,
            step_spans=self.spans,
        )

    def old_logprobs(self) -> torch.Tensor:
        return torch.log_softmax(self.old.double(), -1).gather(1, self.tokens[:, None])[:, 0].nan_to_num(neginf=-99)

    @property
    def vocab(self) -> int:
        return self.current.shape[1]


@dataclass
class Golden:
    parts: list[Part]
    expected: dict
    config: dict

    def cfg(self, subset: str, rule: str) -> Loss:
        return Loss(subset=subset, selection=rule, opd_on_rl_only="anchor", max_candidates=3, **self.config)


def load(name: str) -> Golden:
    told = json.loads((GOLDEN / f"{name}.json").read_text())
    tensors = load_file(GOLDEN / f"{name}.safetensors")
    parts = []
    for i, (count, spans) in enumerate(zip(told["candidates"], told["spans"], strict=True)):
        parts.append(
            Part(
                current=tensors[f"s{i}.current_logits"],
                old=tensors[f"s{i}.old_logits"],
                teacher=torch.stack([tensors[f"s{i}.teacher_logits.{k}"] for k in range(count)]),
                tokens=tensors[f"s{i}.response_tokens"],
                mask=tensors[f"s{i}.loss_mask"],
                advantages=tensors[f"s{i}.advantages"],
                spans=None if spans is None else tuple(map(tuple, spans)),
                grads={f"{s}/{r}": tensors[f"s{i}.grad.{s}.{r}"] for s, r in CELLS},
            )
        )
    keys = ("k", "w_rl", "w_opd", "eps_clip", "eps_clip_high", "diff_clip")
    return Golden(parts, told["expected"], {key: told[key] for key in keys})


def random_parts(
    seed: int, *, vocab: int | None = None, count: int | None = None, ties: bool = False, longest: int = 6
) -> list[Part]:
    """Samples of any shape: one-token replies, empty masks, spans with gaps, K_i from 1 to 3."""
    rng = np.random.default_rng(seed)
    vocab = int(rng.integers(9, 30)) if vocab is None else vocab

    def logits(*shape: int, near: torch.Tensor | None = None) -> torch.Tensor:
        x = rng.normal(0, 1.5, shape) if near is None else near.numpy() + rng.normal(0, 0.4, shape)
        return torch.from_numpy(np.round(x * 2) / 2 if ties else x).float()

    parts = []
    for _ in range(int(rng.integers(1, 4)) if count is None else count):
        length = int(rng.integers(1, longest + 1))
        kind = list(SampleKind)[rng.integers(3)]
        candidates = 1 if kind is SampleKind.RL else int(rng.integers(1, 4))
        old = logits(length, vocab)
        mask = torch.from_numpy(rng.integers(0, 2, length)).float()
        middle = length // 2
        spans = [None, ((0, length),), ((0, middle), (middle, length)), ((middle, length),), ()][rng.integers(5)]
        if spans and any(start == stop for start, stop in spans):
            spans = None
        parts.append(
            Part(
                current=logits(length, vocab, near=old),
                old=old,
                teacher=logits(candidates, length, vocab, near=old * 0.5),
                tokens=torch.from_numpy(rng.integers(0, vocab, length)),
                mask=mask,
                advantages=torch.from_numpy(rng.normal(0, 1, length)).float(),
                spans=spans,
                kind=kind,
            )
        )
    return parts


def whole(vocab: int) -> VocabShard:
    return VocabShard.whole(vocab)


def columns(logits: torch.Tensor, shard: VocabShard) -> torch.Tensor:
    """This rank's columns of logits [..., V]; padded columns hold a large number that must not matter."""
    padded = torch.full((*logits.shape[:-1], shard.start + shard.size), 1e4, dtype=logits.dtype)
    stop = min(logits.shape[-1], shard.start + shard.size)
    padded[..., :stop] = logits[..., :stop]
    return padded[..., shard.start :].clone()


def teacher_scores(
    parts: list[Part], k: int, top_ids: list[torch.Tensor] | None, temperature: float = 1.0
) -> list[TeacherScores]:
    """What a teacher would answer; top_ids are the student's, per sample."""
    scores = []
    for i, part in enumerate(parts):
        full = torch.log_softmax(part.teacher.double() / temperature, -1)
        # The stable sort keeps ties in the order of ids.
        ids = part.teacher.sort(dim=-1, descending=True, stable=True).indices[..., :k]
        at_student = None
        if top_ids is not None:
            at_student = full.gather(-1, top_ids[i].expand(len(full), -1, -1)).numpy()
        scores.append(TeacherScores(f"s{i}", TopK(ids.numpy(), full.gather(-1, ids).numpy()), at_student))
    return scores


@dataclass
class Result:
    out: object
    rows: object
    targets: object
    grads: list[torch.Tensor]
    stats: object


def run(
    parts: list[Part],
    cfg: Loss,
    shard: VocabShard | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    inplace: bool = True,
    reference: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    held: tuple[torch.Tensor, object] | None = None,
    sampling_temperature: float | None = None,
) -> Result:
    """The whole room on parts at logits of dtype; grads are d loss / d current logits of this rank's real columns.

    held = (index, group): this rank has only the rows of index, other ranks of group the others; grads are one tensor.
    """
    vocab = parts[0].vocab
    shard = shard or whole(vocab)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    samples = [part.sample(i) for i, part in enumerate(parts)]
    advantages = [part.advantages.double().numpy() for part in parts]
    rows = pack_rows(samples, cfg, real_vocab=vocab, advantages=advantages, dtype=exact, device=device)
    old = columns(torch.cat([part.old for part in parts]).to(dtype), shard).to(device)
    needed = needs(cfg)
    teacher = pack_teacher(rows, teacher_scores(parts, min(cfg.k, vocab), None, cfg.temperature), cfg, real_vocab=vocab)
    stats = row_stats(
        old,
        shard,
        sampled_ids=rows.response_ids,
        temperature=cfg.temperature,
        k=needed.student_k,
        gather_ids=teacher.gather_ids() if needed.old_at_teacher else None,
        sampling_temperature=sampling_temperature,
    )
    if needed.at_student:
        scores = teacher_scores(parts, min(cfg.k, vocab), rows.split(stats.top_ids.cpu()), cfg.temperature)
        teacher = teacher.with_at_student(rows, {score.sample_id: np.asarray(score.at_student) for score in scores})
    logits = columns(torch.cat([part.current for part in parts]).to(dtype), shard).to(device)
    if held is not None:
        index, group = held
        rows, teacher, logits = rows.take(index, group), teacher.take(index), logits[index]
        stats, reference = map_tensors(stats, lambda x: x[index]), None if reference is None else reference[index]
    targets = build_targets(cfg, rows, stats, teacher if needed.teacher else None, reference)
    leaf = logits.requires_grad_(True)
    out = objective(leaf * 1, rows, targets, cfg, shard, inplace=inplace)
    out.loss.backward()
    assert not leaf.grad[:, shard.real :].any()
    grad = leaf.grad[:, : shard.real]
    return Result(out, rows, targets, rows.split(grad) if held is None else [grad], stats)
