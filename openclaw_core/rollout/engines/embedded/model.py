"""The model behind the engine: hidden states with our KV views, and logits of the real vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openclaw_core.errors import UsageError
from openclaw_core.rollout.engines.embedded import weights
from openclaw_core.rollout.engines.embedded.kv import KVPool

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class EngineModel:
    """A causal language model with its tokenizer (None when the folder has none).

    real_vocab is the tokenizer's last id + 1: the output head's rows past it are never computed, so they can't be sampled.
    """

    folder: Path
    module: Any
    tokenizer: Any
    real_vocab: int
    stop_ids: frozenset[int]
    device: torch.device

    @property
    def config(self) -> Any:
        return self.module.config

    def new_pool(self, max_rows: int, max_columns: int) -> KVPool:
        config = self.config
        return KVPool(
            config.num_hidden_layers,
            config.num_key_value_heads,
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            max_rows=max_rows,
            max_columns=max_columns,
            dtype=self.module.dtype,
            device=self.device,
        )

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: Any) -> torch.Tensor:
        """Final hidden states [b, s, H] of ids and positions [b, s]; mask is boolean [b or 1, 1, s, columns], True attends."""
        # The cache goes by position: its keyword has another name in older releases of transformers.
        return self.module.base_model(ids, mask, positions, cache, use_cache=True).last_hidden_state

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., real_vocab] fp32 of hidden states [..., H]."""
        head = self.module.get_output_embeddings()
        bias = head.bias[: self.real_vocab] if head.bias is not None else None
        return torch.nn.functional.linear(hidden, head.weight[: self.real_vocab], bias).float()

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens) if self.tokenizer is not None else ""


def load_model(folder: Path, device: str, dtype: str) -> EngineModel:
    """Loads a HF folder; UsageError for families this engine doesn't know and for weights that don't fill the model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if config.model_type not in FAMILIES or layer_types != {"full_attention"}:
        raise UsageError(
            f"The embedded engine doesn't serve model type '{config.model_type}' with layers {sorted(layer_types)}.",
            f"It serves {', '.join(FAMILIES)} with full attention; use SGLang for others.",
        )
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True, attn_implementation="sdpa")
    module.eval().requires_grad_(False).to(device)
    try:
        weights.check_names(folder, module)
    except weights.BadWeightsError as error:
        raise UsageError(str(error)) from error
    tokenizer = _tokenizer(folder)
    real_vocab = config.vocab_size
    if tokenizer is not None:
        real_vocab = min(real_vocab, max(tokenizer.get_vocab().values()) + 1)
    return EngineModel(folder, module, tokenizer, real_vocab, _stop_ids(module, tokenizer), torch.device(device))


def _tokenizer(folder: Path) -> Any:
    if not (folder / "tokenizer.json").is_file() and not (folder / "tokenizer_config.json").is_file():
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _stop_ids(module: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    for source in (module.config, getattr(module, "generation_config", None), tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            found.update(ids if isinstance(ids, list | tuple) else [ids])
    return frozenset(found)
