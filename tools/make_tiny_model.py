"""Makes openclaw_core/assets/tiny-qwen3 from nothing, on CPU in minutes; the same bytes for the same versions, seed, threads and
kind of CPU.

    python tools/make_tiny_model.py [--out FOLDER] [--steps N] [--seed N] [--threads N]

A byte-level BPE is trained on the words and wordings of openclaw_core.sim; a Qwen3ForCausalLM of about 1 M parameters is
then taught the lessons of openclaw_core/sim/lessons.py, with loss on replies only. At the end the requirements are measured
on held-out tasks and printed; the exit code is 1 where one fails.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from openclaw_core.sim.lessons import Lesson, Teacher
from openclaw_core.sim.local import LocalModel
from openclaw_core.sim.measure import Case, asked, rate, unasked
from openclaw_core.sim.styles import STYLES
from openclaw_core.sim.tasks import EASE, tasks
from openclaw_core.sim.words import WORDS

HERE = Path(__file__).resolve().parent
MOST_ENTRIES = 1024
SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>",
)  # fmt: skip
EMPTY_THINK = "<think>\n\n</think>\n\n"


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE whose merges are spent on the words in both cases.

    A space is an entry of its own, so that a word has the same id wherever it stands: a copy is then a copy of ids, which a
    tiny model learns in a fraction of the steps.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    forms = [form for word in WORDS for form in (word, word.upper())]
    spoken = [m["content"] for lesson in itertools.islice(Teacher(seed=seed), 1500) for m in lesson.messages]
    trainer = trainers.BpeTrainer(
        vocab_size=MOST_ENTRIES, special_tokens=list(SPECIALS), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(itertools.chain(forms * 80, spoken), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )  # fmt: skip
    fast.chat_template = (HERE / "tiny_chat_template.jinja").read_text().rstrip("\n")
    return fast


def make_config(vocabulary: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=2048, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0}, attention_dropout=0.0,
        bos_token_id=None, eos_token_id=SPECIALS.index("<|im_end|>"), pad_token_id=SPECIALS.index("<|endoftext|>"),
        initializer_range=0.02,
    )  # fmt: skip


def encode(tokenizer: PreTrainedTokenizerFast, lesson: Lesson, think: bool) -> tuple[list[int], list[float]]:
    """Ids of the rendered conversation and the loss weight of each id as a target: replies and the end of turn."""
    ids: list[int] = []
    weights: list[float] = []

    def add(text: str, weight: float) -> None:
        piece = tokenizer.encode(text, add_special_tokens=False)
        ids.extend(piece)
        weights.extend([weight] * len(piece))

    replies = iter(lesson.weights)
    for index, message in enumerate(lesson.messages):
        reply = message["role"] == "assistant"
        think_here = EMPTY_THINK if reply and think and index == len(lesson.messages) - 1 else ""
        add(f"<|im_start|>{message['role']}\n{think_here}", 0.0)
        weight = next(replies) if reply else 0.0
        add(message["content"] + "<|im_end|>", weight)
        add("\n", 0.0)
    return ids, weights


def batches(tokenizer: PreTrainedTokenizerFast, teacher: Teacher, size: int, pool: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (ids [B, T], weights [B, T]) of lessons of similar length: a pool of lessons is sorted, cut and shuffled."""
    rng = random.Random("batches")
    lessons = iter(teacher)
    while True:
        encoded = [encode(tokenizer, next(lessons), rng.random() < 0.25) for _ in range(size * pool)]
        encoded.sort(key=lambda pair: len(pair[0]))
        cuts = [encoded[start : start + size] for start in range(0, len(encoded), size)]
        rng.shuffle(cuts)
        for cut in cuts:
            longest = max(len(ids) for ids, _ in cut)
            yield (
                torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in cut]),
                torch.tensor([weights + [0.0] * (longest - len(weights)) for _, weights in cut]),
            )


def make_optimizers(model: Qwen3ForCausalLM, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (half the steps of Adam here), Adam for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=2 * lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def schedule(step: int, steps: int) -> float:
    """Factor of the learning rate: a warm-up of 40 steps, then half a cosine down to 2 %."""
    return min((step + 1) / 40, max(0.02, 0.5 * (1 + math.cos(math.pi * step / steps))))


def train(tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> Qwen3ForCausalLM:
    torch.manual_seed(args.seed)
    model = Qwen3ForCausalLM(make_config(len(tokenizer))).float().train()
    optimizers = make_optimizers(model, args.lr)
    bases = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    teacher = Teacher("train", args.seed, args.slip_rate, args.slip_weight)
    began, running = time.time(), 0.0
    for step, (ids, weights) in enumerate(itertools.islice(batches(tokenizer, teacher, args.batch), args.steps)):
        targets, weights = ids[:, 1:], weights[:, 1:]
        rows = weights > 0
        hidden = model.model(ids[:, :-1]).last_hidden_state[rows]
        losses = torch.nn.functional.cross_entropy(model.lm_head(hidden), targets[rows], reduction="none")
        loss = (losses * weights[rows]).sum() / weights[rows].sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, base in zip(optimizers, bases, strict=True):
            optimizer.param_groups[0]["lr"] = base * schedule(step, args.steps)
            optimizer.step()
            optimizer.zero_grad()
        running = loss.item() if step == 0 else 0.95 * running + 0.05 * loss.item()
        if step % 50 == 49:
            print(f"step {step + 1:5d}  loss {running:.4f}  {time.time() - began:.0f} s", flush=True)
    return model.eval()


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")],
        pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0, top_p=1.0, top_k=0,
    )  # fmt: skip
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    settings = out / "tokenizer_config.json"  # the class name that older and newer readers share
    settings.write_text(settings.read_text().replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"'))
    for file in out.iterdir():
        file.chmod(0o644)


def measure(local: LocalModel, count: int) -> bool:
    """Prints the requirements on held-out tasks, greedy and at temperature 1; count tasks per style. Whether all hold."""
    good = True
    held_out = list(itertools.islice(tasks("held_out", seed=1, ease=EASE), count * 4))
    groups = [(f"asked {name}", asked(held_out[:count], style)) for name, style in STYLES.items()]
    for temperature in (0.0, 1.0):
        every: list[tuple[Case, str]] = []
        for title, cases in [*groups, ("nothing asked", unasked(held_out))]:
            replies = local.replies([case.messages for case in cases], temperature)
            got = rate(cases, replies)
            unwanted = 1 - got.obeyed if title == "nothing asked" else None
            good &= got.solved >= 0.97 and (got.obeyed >= 0.97 if unwanted is None else unwanted < 0.005)
            print(f"temperature {temperature}  {title:18s} n {got.count:4d}  obeyed {got.obeyed:.4f}  solved {got.solved:.4f}")
            every += zip(cases, replies, strict=True)
        parts: dict[tuple[str, str], list[bool]] = {}
        for case, reply in every:
            right = case.style.apply(case.task.answer) if case.style else case.task.answer
            for key in (("form", case.group), ("task", case.task.kind)):
                parts.setdefault(key, []).append(reply == right)
        print("  exactly right: " + ", ".join(f"{k[1]} {sum(v) / len(v):.3f}" for k, v in sorted(parts.items())))
        wrong = [(c.messages[-1]["content"], r) for c, r in every if c.style is None and r != c.task.answer]
        for prompt, reply in wrong[:5]:
            print(f"  wrong: {prompt!r} -> {reply!r}")
    first_tokens(local)
    return good


def first_tokens(local: LocalModel) -> None:
    """Prints how probable the first token of each style is where nothing is asked, and where it is asked by a hint."""
    held_out = list(itertools.islice(tasks("held_out", seed=2, ease=EASE), 100))
    bare = local.next_token_probabilities([[{"role": "user", "content": task.prompt}] for task in held_out])
    rank = (-bare).argsort(-1).argsort(-1)
    for name, style in STYLES.items():
        first = torch.tensor([local.tokenizer.encode(style.apply(task.answer))[0] for task in held_out])[:, None]
        plain = torch.tensor([local.tokenizer.encode(task.answer)[0] for task in held_out])[:, None]
        if (first == plain).all():
            continue
        hinted = local.next_token_probabilities([asked([task], style)[0].messages for task in held_out])
        p, q, r = bare.gather(1, first), hinted.gather(1, first), rank.gather(1, first).float()
        left = hinted.gather(1, plain).median()
        print(
            f"first token of {name:9s} nothing asked: mean {p.mean():.1e} median {p.median():.1e} min {p.min():.1e} "
            f"max {p.max():.1e} in top 4 {(r < 4).float().mean():.2f}; "
            f"hinted: mean {q.mean():.4f}, plain one median {left:.1e}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "openclaw_core" / "assets" / "tiny-qwen3")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--threads", type=int, default=1, help="the shipped model was made with 1; 2 is faster on two free cores")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slip-rate", type=float, default=0.15)
    parser.add_argument("--slip-weight", type=float, default=0.02)
    parser.add_argument("--cases", type=int, default=400, help="held-out tasks per style when measuring")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer(args.seed)
    model = train(tokenizer, args)
    save(model, tokenizer, args.out)
    return 0 if measure(LocalModel.load(args.out), args.cases) else 1


if __name__ == "__main__":
    sys.exit(main())
