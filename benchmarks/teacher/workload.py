"""What is scored: samples of random ids with the lengths and shared prefixes of real ones, and the models that score them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openclaw_core.models.architecture import Architecture
from openclaw_core.types import Candidate, Hint, Sample, SampleKind


@dataclass(frozen=True)
class Shape:
    """A teacher with random weights, the lengths in tokens, and the budget of a pack."""

    arch: Architecture
    dtype: str
    history: int
    hint: int
    reply: int
    budget: int


@dataclass(frozen=True)
class Scenario:
    """16 samples with 1, 2 or 3 hints each. hint_at is where in the history the hint stands (1: behind it); turns is how many
    samples follow each other in one conversation."""

    name: str
    about: str
    hint_at: float = 1.0
    turns: int = 1


SAMPLES, K = 16, 4
SCENARIOS = (
    Scenario("last message", "16 conversations, the hint at the end of the prompt"),
    Scenario("before tool results", "16 conversations, half of the history behind the hint", hint_at=0.5),
    Scenario("four turns", "4 conversations of 4 turns, each turn's history the one before and more", turns=4),
    Scenario("system message", "16 conversations, the hint at the very beginning: nothing can be shared", hint_at=0.0),
)


def _arch(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int, vocab: int, tied: bool) -> Architecture:
    return Architecture(
        family="qwen3", model_type="qwen3", layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        ffn=ffn, vocab=vocab, rope_theta=1e6, norm_eps=1e-6, tied=tied, qk_norm=True, qkv_bias=False, max_position=40960,
        dtype="bfloat16",
    )  # fmt: skip


SHAPES = {
    "small": Shape(_arch(4, 128, 4, 2, 32, 384, 2048, True), "fp32", 512, 24, 64, 4096),
    "qwen3-4b": Shape(_arch(36, 2560, 32, 8, 128, 9728, 151936, True), "bf16", 8192, 200, 1024, 32768),
    "qwen3-8b": Shape(_arch(36, 4096, 32, 8, 128, 12288, 151936, False), "bf16", 8192, 200, 1024, 32768),
}


def make_samples(shape: Shape, scenario: Scenario) -> list[Sample]:
    """The samples; deterministic."""
    rng = np.random.default_rng(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, shape.arch.vocab, count).tolist())

    samples = []
    for conversation in range(SAMPLES // scenario.turns):
        history: tuple[int, ...] = ()
        for turn in range(scenario.turns):
            history += ids(shape.history * (turn + 1) // scenario.turns - len(history))
            number = conversation * scenario.turns + turn
            at = round(len(history) * scenario.hint_at)
            prompts = [(*history[:at], *ids(shape.hint), *history[at:]) for _ in range(1 + number % 3)]
            reply = ids(shape.reply)
            candidates = tuple(Candidate(prompt, Hint("a hint of some length")) for prompt in prompts)
            zeros, ones = (0.0,) * len(reply), (1,) * len(reply)
            samples.append(Sample(f"s{number}", f"t{number}", SampleKind.OPD, 0.0, history, reply, zeros, ones, candidates, 0))
    return samples
