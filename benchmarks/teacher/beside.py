"""A teacher beside a smaller student on one GPU: python -m benchmarks.teacher.beside completes steps and writes beside.json.

Two processes share the device, as two actors on one GPU do. The student's random weights are written as a Hugging Face
folder first, for the trainer starts from one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.teacher.workload import SCENARIOS, SHAPES, Shape, make_samples
from openclaw_core.types import Sample, SampleKind

PATH = Path(__file__).with_name("beside.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.teacher.beside", description=__doc__)
    parser.add_argument("--student", choices=SHAPES, default="qwen3-4b")
    parser.add_argument("--teacher", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--samples", type=int, default=6, help="of the first scenario, 1, 2, 3, 1, ... hints")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--out", type=Path, default=PATH)
    chosen = parser.parse_args()
    teacher = SHAPES[chosen.teacher]
    samples = [_trainable(s, i) for i, s in enumerate(make_samples(teacher, SCENARIOS[0])[: chosen.samples])]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_teach, args=(theirs, teacher))
    process.start()
    theirs.close()
    try:
        record = _learn(ours, SHAPES[chosen.student], teacher, samples, chosen.steps)
        ours.send(("close", None))
        process.join(60)
    finally:
        process.kill()
    record |= {"student": chosen.student, "teacher": chosen.teacher, "samples": len(samples)}
    chosen.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


def _trainable(sample: Sample, number: int) -> Sample:
    reward = 1.0 if number % 2 else -1.0
    return replace(sample, kind=SampleKind.OPD_RL, reward=reward, response_logprobs=(-12.0,) * len(sample.response_ids))


def _teach(pipe: Connection, shape: Shape) -> None:
    """The teacher's process: answers with what a method returns, until it is told to close."""
    import torch

    from benchmarks.teacher.measure import make_scorer

    scorer = make_scorer(shape)
    pipe.send("ready")
    while True:
        name, argument = pipe.recv()
        if name == "close":
            break
        if name == "peak":
            pipe.send(torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0)
        elif name == "hash":
            pipe.send(scorer.weights_hash())
        else:
            pipe.send(getattr(scorer, name)(argument))
    scorer.close()


def _learn(pipe: Connection, student: Shape, teacher: Shape, samples: Sequence[Sample], steps: int) -> dict[str, Any]:
    import torch

    from openclaw_core.config.schema import Loss, Optimizer, Train
    from openclaw_core.models.megatron import parallel
    from openclaw_core.models.megatron.parallel import ParallelSizes
    from openclaw_core.run.trainer import Trainer

    begun = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - begun:.1f} s: {what}", flush=True)

    def ask(name: str, argument: Any = None) -> Any:
        pipe.send((name, argument))
        return pipe.recv()

    with tempfile.TemporaryDirectory() as folder:
        write_student(student, Path(folder))
        say("the student's weights are written")
        trainer = Trainer(
            student.arch, folder, ParallelSizes(), parallel.host(1), loss=Loss(), optimizer=Optimizer(),
            train=Train(dtype="bf16" if student.dtype == "bf16" else "fp32", max_tokens_per_device=student.budget),
        )  # fmt: skip
    cuda = torch.cuda.is_available()
    say("the student is loaded")
    assert pipe.recv() == "ready"
    say("the teacher is there")
    before = {"student": trainer.weights_hash(), "teacher": ask("hash")}
    done = []
    for _ in range(steps):
        clock = time.monotonic()
        scores = ask("score", samples)
        scored = time.monotonic()
        old = trainer.old_pass(samples, scores)
        read = time.monotonic()
        told = ask("logprobs_at", [(s.sample_id, old[s.sample_id].top.ids) for s in samples])
        scores = [replace(s, at_student=told[s.sample_id]) for s in scores]
        asked = time.monotonic()
        out = trainer.train_step(samples, scores)
        seconds = {"teacher": scored - clock, "old pass": read - scored, "teacher at student's ids": asked - read, **out.seconds}
        metrics = (out.metrics or {}).get("all", {})
        done.append({"seconds": seconds, "grad_norm": out.grad_norm, "loss": metrics.get("loss/total"), "tokens": out.tokens})
        ask("forget", [s.sample_id for s in samples])
        say("a step is complete")
    after = {"student": trainer.weights_hash(), "teacher": ask("hash")}
    record = {
        "command": "python -m benchmarks.teacher.beside",
        "machine": f"{torch.cuda.get_device_name(0) if cuda else 'a CPU'}, torch {torch.__version__}",
        "steps": done,
        "student_changed": before["student"] != after["student"],
        "teacher_changed": before["teacher"] != after["teacher"],
        "peak_bytes": {"student": torch.cuda.max_memory_reserved() if cuda else 0, "teacher": ask("peak")},
        "device_bytes": torch.cuda.mem_get_info()[1] if cuda else 0,
    }
    trainer.close()
    return record


def write_student(shape: Shape, folder: Path) -> None:
    """A Hugging Face folder of random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    arch = shape.arch
    config = Qwen3Config(
        vocab_size=arch.vocab, hidden_size=arch.hidden, intermediate_size=arch.ffn, num_hidden_layers=arch.layers,
        num_attention_heads=arch.heads, num_key_value_heads=arch.kv_heads, head_dim=arch.head_dim, rms_norm_eps=arch.norm_eps,
        max_position_embeddings=arch.max_position, tie_word_embeddings=arch.tied,
        rope_parameters={"rope_type": "default", "rope_theta": arch.rope_theta},
    )  # fmt: skip
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16 if shape.dtype == "bf16" else torch.float32)
    model.save_pretrained(folder)
    del model
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
