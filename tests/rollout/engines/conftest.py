"""Random tiny Qwen3 models, and engines in this process. Weights are large, so that attention shows in the logits."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from openclaw_core.rollout.engines.client import EngineClient
from openclaw_core.rollout.engines.embedded.batching import Batcher
from openclaw_core.rollout.engines.embedded.model import EngineModel, load_model
from openclaw_core.rollout.engines.embedded.server import ServerSettings, create_app
from openclaw_core.rollout.engines.embedded.worker import EngineThread

VOCAB, REAL_VOCAB, CONTEXT = 320, 260, 256
SGLANG_URL = os.environ.get("OPENCLAW_SGLANG_URL")


def make_folder(folder: Path, seed: int, **changes: object) -> Path:
    torch.manual_seed(seed)
    tokenizer = _tokenizer()
    config = Qwen3Config(
        **{
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "initializer_range": 0.2,
            "eos_token_id": tokenizer.eos_token_id,
            **changes,
        }
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=REAL_VOCAB - 2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator(["the quick brown fox the quick"], trainer)
    raw.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model-a"), 0)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model-b"), 1)


@pytest.fixture(scope="session")
def reference() -> Callable[[Path, list[int]], torch.Tensor]:
    """Log-probs [P, real vocab] of a plain transformers forward at temperature t."""
    loaded: dict[Path, Qwen3ForCausalLM] = {}

    def logprobs(path: Path, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
        if path not in loaded:
            loaded[path] = Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = loaded[path](torch.tensor([ids])).logits[0, :, :REAL_VOCAB]
        return torch.log_softmax(logits / temperature, -1)

    return logprobs


@pytest.fixture
def model(folder: Path) -> EngineModel:
    return load_model(folder, "cpu", "float32")


@dataclass
class Running:
    client: EngineClient
    engine: EngineThread
    batcher: Batcher
    model: EngineModel


@asynccontextmanager
async def in_process(model: EngineModel) -> AsyncIterator[Running]:
    """The whole server but its socket."""
    batcher = Batcher(model, max_rows=4, context_length=CONTEXT, version="0")
    engine = EngineThread(batcher)
    engine.start()
    app = create_app(engine, model, lambda: batcher.version, ServerSettings(CONTEXT, 4, 64, 0, "cpu", "float32"))
    async with EngineClient("http://engine", transport=httpx.ASGITransport(app), timeout_s=30.0) as client:
        yield Running(client, engine, batcher, model)
    engine.stop()


@pytest.fixture
async def running(model: EngineModel) -> AsyncIterator[Running]:
    async with in_process(model) as engine:
        yield engine


@pytest.fixture(
    params=["embedded", pytest.param("sglang", marks=pytest.mark.skipif(not SGLANG_URL, reason="no OPENCLAW_SGLANG_URL"))]
)
async def any_client(request: pytest.FixtureRequest, model: EngineModel) -> AsyncIterator[EngineClient]:
    """The embedded engine, and SGLang where there is one."""
    if request.param == "embedded":
        async with in_process(model) as engine:
            yield engine.client
        return
    async with EngineClient(str(SGLANG_URL), timeout_s=60.0) as real:
        await real.resume()
        yield real
        await real.resume()
