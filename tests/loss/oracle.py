"""The objective written down position by position in float64, as slow and as close to docs/method.md as can be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from openclaw_core.types import SampleKind


@dataclass
class Told:
    loss: float
    grpo: float
    opd: float
    k_star: list[list[int]]
    supports: list[list[set[int]]]
    grads: list[torch.Tensor]


def top(logits, k):
    """Ids of the k largest, ties to the lower id, without ids of probability 0."""
    ids = sorted(range(len(logits)), key=lambda v: (-float(logits[v]), v))[:k]
    return [v for v in ids if logits[v] > -math.inf]


def ell(logits, temperature):
    return torch.log_softmax(logits.double() / temperature, -1)


def clip(x, low, high):
    return max(low, min(high, x))


def choose(rule, overlap, signal, spans, length):
    """k* per position from O[k][t] and sum_v w_v |d_v| [k][t]."""
    best = [0] * length
    if rule == "shortest":
        return best
    if rule == "token_optimal":
        return [max(range(len(overlap)), key=lambda k: (overlap[k][t], -k)) for t in range(length)]
    for start, stop in spans:
        kept = list(range(len(overlap)))
        if rule == "signal_optimal":
            heeded = [sum(row[start:stop]) / (stop - start) for row in signal]
            kept = [k for k in kept if not heeded[k] < 0.5 * max(heeded)]
        winner = max(kept, key=lambda k: (sum(overlap[k][start:stop]), -k))
        best[start:stop] = [winner] * (stop - start)
    return best


def ppo(advantage, log_ratio, cfg):
    rho = log_ratio.clamp(-20, 20).exp()
    loss = torch.maximum(-advantage * rho, -advantage * rho.clamp(1 - cfg.eps_clip, 1 + cfg.eps_clip_high))
    if cfg.dual_clip is not None and advantage < 0:
        loss = torch.minimum(loss, torch.tensor(-advantage * cfg.dual_clip, dtype=torch.float64))
    return loss


def opd_at(support, old, told, cur, cfg, vocab):
    """OPD_t for one position: support is a list of ids; old, told and cur are log-probs over the vocabulary."""
    bins = [(old[v], told[v], cur[v]) for v in support]
    if cfg.tail == "bin" and len(support) < vocab:
        rest = [v for v in range(vocab) if v not in support]
        bins.append(tuple(torch.logsumexp(x[rest], 0) for x in (old, told, cur)))
    # A bin of old probability 0 has weight 0.
    bins = [one for one in bins if one[0] > -math.inf]
    total = torch.zeros((), dtype=torch.float64)
    if not bins:
        return total
    weights = torch.softmax(torch.stack([o for o, _, _ in bins]), 0)
    for weight, (o, t, c) in zip(weights.tolist(), bins, strict=True):
        d = float(t - o)
        if cfg.diff_clip > 0:
            d = clip(d, -cfg.diff_clip, cfg.diff_clip)
        total = total + ppo(d * weight, c - o, cfg)
    return total


def oracle(parts, cfg, reference=None):
    """Loss, its parts (sums over samples), k*, supports, and d loss / d current logits of every part."""
    loss = grpo = opd = torch.zeros((), dtype=torch.float64)
    told = Told(0, 0, 0, [], [], [])
    leaves, row = [], 0
    for part in parts:
        length, vocab = part.current.shape
        leaf = part.current.double().requires_grad_(True)
        leaves.append(leaf)
        cur, old, teacher = ell(leaf, cfg.temperature), ell(part.old, cfg.temperature), ell(part.teacher, cfg.temperature)
        k = min(cfg.k, vocab)
        mine = [top(part.old[t], k) for t in range(length)]
        theirs = [[top(z[t], k) for t in range(length)] for z in part.teacher]
        overlap = [[len(set(mine[t]) & set(one[t])) for t in range(length)] for one in theirs]
        signal = [
            [float((torch.softmax(old[t, mine[t]], 0) * (z[t, mine[t]] - old[t, mine[t]]).abs()).sum()) for t in range(length)]
            for z in teacher
        ]
        spans = ((0, length),) if part.spans is None else part.spans
        taught = part.kind is not SampleKind.RL or cfg.opd_on_rl_only == "anchor"
        k_star = choose(cfg.selection, overlap, signal, spans, length) if taught else [0] * length
        told.k_star.append(k_star)
        supports = []
        trained = float(part.mask.sum())
        for t in range(length):
            chosen = theirs[k_star[t]][t]
            support = {"student": mine[t], "teacher": chosen, "overlap": [v for v in mine[t] if v in chosen]}[cfg.subset]
            support = [v for v in support if old[t, v] > -math.inf]
            supports.append(set(support) if taught else set())
            if part.mask[t]:
                sampled = int(part.tokens[t])
                log_ratio = cur[t, sampled] - old[t, sampled]
                g = ppo(float(part.advantages[t]), log_ratio, cfg)
                o = opd_at(support, old[t], teacher[k_star[t], t], cur[t], cfg, vocab) if taught else torch.zeros(())
                p = cur[t].exp()
                entropy = -(p * torch.where(p > 0, cur[t], 0.0)).sum()
                total = cfg.w_rl * g + cfg.w_opd * o - cfg.entropy_coef * entropy
                if cfg.kl_coef:
                    x = float(reference[row + t]) - cur[t, sampled]
                    total = total + cfg.kl_coef * log_ratio.exp() * (x.exp() - x - 1)
                loss, grpo, opd = loss + total / trained, grpo + g / trained, opd + o / trained
        told.supports.append(supports)
        row += length
    told.loss, told.grpo, told.opd = float(loss), float(grpo), float(opd)
    if loss.requires_grad:
        loss.backward()
    told.grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return told
