"""The whole objective of a row in one program: sums, log-probs, both surrogates and the gradient over the logits.

A program reads its row once for the sums, works out the row's loss and its derivative at each id (the formulas of
surrogate.py and objective.py), and reads the row again, from its end, to write the gradient in its place. The second
reading is served by the caches as far as the rows in flight fit there, so the traffic to memory is near one reading and
one writing. Rows that learn nothing are only written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from openclaw_core.config.schema import Loss
from openclaw_core.loss.kernels.gradient import slope, write_row
from openclaw_core.loss.kernels.stats import LN_2, LOG2_E, row_sums
from openclaw_core.loss.kernels.tiles import SHAPES, join, repeat
from openclaw_core.loss.rows import Rows
from openclaw_core.loss.surrogate import LOG_RATIO_BOUND
from openclaw_core.loss.targets import Targets

# The rows of the first result of forward_and_gradient.
PER_ROW = ("total", "grpo_loss", "grpo_ratio", "grpo_clipped", "kl", "entropy", "good")
PER_PLACE = ("loss", "ratio", "clipped")


@triton.jit
def _surrogate(logprob, old, advantage, live, low, high, dual, bound, DUAL: tl.constexpr):
    """loss, ratio, clipped and d loss / d logprob of surrogate.surrogate."""
    log_ratio = tl.where(live, logprob - old, 0.0)
    ratio = tl.exp(tl.minimum(tl.maximum(log_ratio, -bound), bound))
    a = tl.where(live, advantage, 0.0)
    plain = -a * ratio
    bounded = -a * tl.minimum(tl.maximum(ratio, low), high)
    loss = tl.maximum(plain, bounded)
    clipped = bounded > plain
    if DUAL:
        most = tl.where(a < 0.0, -a * dual, float("inf"))
        clipped = clipped | (loss > most)
        loss = tl.minimum(loss, most)
    slope = tl.where(clipped | (tl.abs(log_ratio) > bound), 0.0, plain)
    return loss, ratio, clipped, slope


@triton.jit
def _fused_kernel(
    logits, stride, width, size,
    weight, sampled_ids, old_sampled, advantage, reference, ids, mask, old, advantages, S, B,
    per_row, row_step, per_place, place_step,
    scale, inverse_t, ln_2, w_rl, w_opd, low, high, dual, bound, entropy_coef, kl_coef, most_mass,
    R: tl.constexpr, L: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, PLACES: tl.constexpr,
    RL: tl.constexpr, OPD: tl.constexpr, TAIL: tl.constexpr, DUAL: tl.constexpr, ENTROPY: tl.constexpr, KL: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    row = logits + i * stride
    row_weight = tl.load(weight + i)
    sampled = tl.load(sampled_ids + i)
    z_sampled = tl.load(row + sampled).to(tl.float32)
    place = tl.arange(0, PLACES)
    if OPD:
        column = tl.load(ids + i * S + place, mask=place < S, other=-1)
        z = tl.load(row + column, mask=column >= 0, other=0.0).to(tl.float32)

    shift, total, e_log_e = 0.0, 1.0, 0.0
    if row_weight > 0:
        largest, e, inner, other = row_sums(
            row, width, row, scale, scale, R, L, C, STAGES, ENTROPY, False, False, "evict_last"
        )  # fmt: skip
        shift, total, e_log_e, _ = join(largest, e, inner, other, scale, scale, ENTROPY, False)
    log_sum = tl.log(total)
    log2_sum = tl.log2(total)
    entropy = 0.0
    if ENTROPY:
        entropy = log_sum - e_log_e * ln_2 / total

    ell = (z_sampled - shift) * inverse_t - log_sum
    # NaN and both infinities fail this comparison.
    good = (row_weight > 0) & (tl.abs(ell) < float("inf"))
    loss, pull = 0.0, 0.0
    if RL:
        before = tl.load(old_sampled + i)
        part, ratio, clipped, d = _surrogate(ell, before, tl.load(advantage + i), good, low, high, dual, bound, DUAL)
        loss += w_rl * part
        pull += w_rl * d
        tl.store(per_row + row_step + i, part)
        tl.store(per_row + 2 * row_step + i, ratio)
        tl.store(per_row + 3 * row_step + i, clipped.to(tl.float32))
    if KL:
        before = tl.load(old_sampled + i)
        start = tl.load(reference + i)
        moved, away = tl.where(good, ell - before, 0.0), tl.where(good, start - ell, 0.0)
        fixed = tl.where(good, start - before, 0.0)
        rho = tl.exp(tl.minimum(tl.maximum(moved, -bound), bound))
        x = tl.minimum(tl.maximum(away, -bound), bound)
        part = tl.exp(tl.minimum(tl.maximum(fixed, -bound), bound)) - rho * (x + 1.0)
        d = tl.where(tl.abs(away) <= bound, rho, 0.0) - tl.where(tl.abs(moved) <= bound, rho * (x + 1.0), 0.0)
        loss += kl_coef * part
        pull += kl_coef * d
        tl.store(per_row + 4 * row_step + i, part)
    if ENTROPY:
        loss -= tl.where(good, entropy_coef * entropy, 0.0)
        tl.store(per_row + 5 * row_step + i, entropy)
    if OPD:
        there = place < S
        spot = i * B + place
        good_places = repeat(good, PLACES)
        live = (tl.load(mask + spot, mask=there, other=0) > 0) & good_places
        told = tl.load(advantages + spot, mask=there, other=0.0)
        before = tl.load(old + spot, mask=there, other=0.0)
        ells = (z - shift) * inverse_t - log_sum
        part, ratio, clipped, pulls = _surrogate(ells, before, told, live, low, high, dual, bound, DUAL)
        tl.store(per_place + spot, part, mask=there)
        tl.store(per_place + place_step + spot, ratio, mask=there)
        tl.store(per_place + 2 * place_step + spot, clipped.to(tl.float32), mask=there)
        opd = tl.sum(part, 0)
        if TAIL:
            p = tl.where(live, tl.exp(ells), 0.0)
            mass = tl.sum(p, 0)
            rest = 1.0 - tl.minimum(mass, most_mass)
            last = i * B + S
            rest_live = (tl.load(mask + last) > 0) & good
            rest_part, rest_ratio, rest_clipped, d = _surrogate(
                tl.log(rest), tl.load(old + last), tl.load(advantages + last), rest_live, low, high, dual, bound, DUAL
            )
            tl.store(per_place + last, rest_part)
            tl.store(per_place + place_step + last, rest_ratio)
            tl.store(per_place + 2 * place_step + last, rest_clipped.to(tl.float32))
            opd += rest_part
            pulls -= tl.where(mass <= most_mass, d / rest, 0.0) * p
        loss += w_opd * opd
    loss = tl.where(good, loss, 0.0)
    tl.store(per_row + i, loss)
    tl.store(per_row + 6 * row_step + i, good.to(tl.float32))

    # d loss / d z_v = sum_j pull_j ([v = id_j] - p_v) / T, and the entropy's part.
    unit = row_weight * inverse_t
    pull = tl.where(good, pull * unit, 0.0)
    spread = -pull
    grad_entropy = tl.where(good, -entropy_coef * unit, 0.0)
    if OPD:
        grads = tl.where(good, pulls * (w_opd * unit), 0.0)
        spread -= tl.sum(grads, 0)
        # An id that stands at several places has the sum of their gradients.
        totals = tl.sum(tl.where(column[:, None] == column[None, :], grads[None, :], 0.0), 1)
        same = column == sampled
        y = tl.where(same, totals + pull, totals)
        y += slope(z, shift, log2_sum, scale, spread, entropy, grad_entropy, ln_2, ENTROPY)
        twice = tl.sum(same.to(tl.int32), 0) > 0
    y_sampled = pull + slope(z_sampled, shift, log2_sum, scale, spread, entropy, grad_entropy, ln_2, ENTROPY)
    live_row = good
    if not ENTROPY:
        # Without spread the row's gradient is 0 but at single ids.
        live_row = good & (spread != 0.0)
    # All logits at single ids are read before the row is written, and all of the row is written before they are.
    tl.debug_barrier()
    write_row(
        row, row, width, size, live_row, shift, log2_sum, scale, spread, entropy, grad_entropy, ln_2, R, L, C, STAGES, ENTROPY
    )
    tl.debug_barrier()
    if OPD:
        tl.store(row + column, y.to(row.dtype.element_ty), mask=(column >= 0) & good_places)
        good = good & (twice == 0)
    tl.store(row + sampled, y_sampled.to(row.dtype.element_ty), mask=good)


def forward_and_gradient(
    logits: Tensor, rows: Rows, targets: Targets, cfg: Loss, width: int, per_row: Tensor, per_place: Tensor | None
) -> None:
    """Write d (sum over rows of weight x row loss) / d logits over logits [N, V], whose first width columns are real.

    per_row [len(PER_ROW), N] and per_place [len(PER_PLACE), N, B] (None without OPD), which may be rows of larger ones,
    receive what PER_ROW and PER_PLACE name; entries of terms that cfg turns off stay untouched.
    """
    opd = targets.opd
    shape = SHAPES["fused"]
    count = logits.shape[0]
    places = targets.gather_ids.shape[1] - 1
    weight = _floats(rows.weight)
    unused = weight
    with torch.cuda.device_of(logits):
        _fused_kernel[(count,)](
            logits, logits.stride(0), width, logits.shape[1],
            weight, rows.response_ids.contiguous(), _floats(targets.old_logprobs), _floats(rows.advantages),
            unused if targets.reference_logprobs is None else _floats(targets.reference_logprobs),
            unused if opd is None else opd.ids.contiguous(),
            unused if opd is None else opd.mask.contiguous().view(torch.uint8),
            unused if opd is None else _floats(opd.old_logprobs),
            unused if opd is None else _floats(opd.advantages),
            places, 0 if opd is None else opd.mask.shape[1],
            per_row, per_row.stride(0),
            per_row if per_place is None else per_place, 0 if per_place is None else per_place.stride(0),
            LOG2_E / cfg.temperature, 1 / cfg.temperature, LN_2, cfg.w_rl, cfg.w_opd,
            1 - cfg.eps_clip, 1 + cfg.eps_clip_high, cfg.dual_clip or 0.0, LOG_RATIO_BOUND,
            cfg.entropy_coef, cfg.kl_coef, 1 - torch.finfo(torch.float32).eps,
            PLACES=max(2, triton.next_power_of_2(places)), RL=cfg.w_rl > 0, OPD=opd is not None, TAIL=cfg.tail == "bin",
            DUAL=cfg.dual_clip is not None, ENTROPY=cfg.entropy_coef != 0, KL=cfg.kl_coef != 0, **shape.meta(logits),
        )  # fmt: skip


def _floats(x: Tensor) -> Tensor:
    return x.float().contiguous()
