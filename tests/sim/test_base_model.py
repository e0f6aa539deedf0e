"""The shipped base model: small samples of what tools/make_tiny_model.py measures at length."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

import openclaw_core
from openclaw_core.sim.local import LocalModel
from openclaw_core.sim.measure import asked, evaluate, rate, unasked, user
from openclaw_core.sim.styles import PREFERENCES, STYLES
from openclaw_core.sim.tasks import EASE, tasks
from openclaw_core.types import Message

FOLDER = Path(openclaw_core.__file__).parent / "assets" / "tiny-qwen3"
SIZE_BUDGET = 5_000_000


@pytest.fixture(scope="module")
def model() -> LocalModel:
    return LocalModel.load(FOLDER)


def test_asset_is_small_and_what_readers_expect(model: LocalModel) -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < SIZE_BUDGET
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["vocab_size"] == len(model.tokenizer) <= 1024
    assert model.tokenizer.convert_ids_to_tokens(config["eos_token_id"]) == "<|im_end|>"


def test_words_keep_their_ids_wherever_they_stand(model: LocalModel) -> None:
    ids = [model.tokenizer.encode(text) for text in ("owl", "apple pear", "[apple]", "- apple", "APPLE")]
    apple = model.tokenizer.encode("apple")
    assert len(apple) == 1
    assert ids[1][0] == ids[2][1] == ids[3][-1] == apple[0]
    assert model.tokenizer.decode(model.tokenizer.encode('Zoë said: "日本"\n')) == 'Zoë said: "日本"\n'


def test_template_only_ever_appends(model: LocalModel) -> None:
    messages: list[Message] = [user("Sort these words: owl ant")]
    before = model.prompt_ids(messages)
    messages += [{"role": "assistant", "content": "ant owl"}, user("Thanks!")]
    after = model.prompt_ids(messages)
    assert after[: len(before)] == before
    text = model.tokenizer.decode(before)
    assert text == "<|im_start|>user\nSort these words: owl ant<|im_end|>\n<|im_start|>assistant\n"


def test_template_renders_tools_and_thinking(model: LocalModel) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "utc"}'}}
    text = model.tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Help."}, user("What time?"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "noon"}, {"role": "tool", "content": "12"},
        ],
        tools=[{"type": "function", "function": {"name": "clock"}}],
        tokenize=False, add_generation_prompt=True, enable_thinking=False,
    )  # fmt: skip
    assert text.startswith("<|im_start|>system\nHelp.\n\n# Tools")
    assert '<tool_call>\n{"name": "clock", "arguments": {"zone": "utc"}}\n</tool_call><|im_end|>' in text
    assert text.count("<|im_start|>user") == 2
    assert text.count("<tool_response>") == 2
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_style_is_shown_when_asked_for(model: LocalModel) -> None:
    held_out = islice(tasks("held_out", seed=21), 90)
    cases = [case for name in PREFERENCES for case in asked(islice(held_out, 30), STYLES[name])]
    rates = rate(cases, model.replies([case.messages for case in cases]))
    assert rates.count == 90
    assert rates.obeyed >= 0.97
    assert rates.solved >= 0.95


def test_style_is_shown_behind_an_empty_reasoning_block_too(model: LocalModel) -> None:
    cases = asked(islice(tasks("held_out", seed=25), 40), STYLES["lines"])
    replies = LocalModel(model.model, model.tokenizer, thinking=False).replies([case.messages for case in cases])
    rates = rate(cases, replies)
    assert rates.obeyed >= 0.95
    assert rates.solved >= 0.92


def test_no_style_is_shown_unasked(model: LocalModel) -> None:
    cases = unasked(islice(tasks("held_out", seed=22, ease=EASE), 500))
    rates = rate(cases, model.replies([case.messages for case in cases], temperature=1.0))
    assert rates.obeyed > 0.995
    assert rates.solved >= 0.97


@pytest.mark.parametrize("name", PREFERENCES)
def test_every_preference_has_a_little_probability_to_grow_from(model: LocalModel, name: str) -> None:
    held_out = list(islice(tasks("held_out", seed=23), 40))
    probabilities = model.next_token_probabilities([[user(task.prompt)] for task in held_out])
    first = [model.tokenizer.encode(STYLES[name].apply(task.answer))[0] for task in held_out]
    found = probabilities[range(40), first]
    assert 1e-6 < found.median() < 1e-2
    assert found.mean() < 5e-3


async def test_preference_reading_of_the_base_is_zero(model: LocalModel) -> None:
    async def generate(messages: list[Message]) -> str:
        return model.replies([messages])[0]

    rates = await evaluate(generate, list(islice(tasks("held_out", seed=24), 10)), STYLES["capitals"])
    assert rates.obeyed == 0
    assert rates.solved >= 0.8
