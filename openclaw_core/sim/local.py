"""Answers conversations with a Hugging Face folder in this process: for measuring the base model, not for serving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from openclaw_core.types import Message


class LocalModel:
    """A causal language model with its tokenizer and chat template, in evaluation mode."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.end = int(tokenizer.eos_token_id)
        self.pad = int(tokenizer.pad_token_id)

    @classmethod
    def load(cls, folder: Path) -> LocalModel:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        return cls(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the conversation with the start of the next reply."""
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    @torch.inference_mode()
    def next_token_probabilities(self, conversations: Sequence[Sequence[Message]]) -> torch.Tensor:
        """Probabilities of the first token of the next reply, [len(conversations), vocabulary]."""
        rows = [self.model(torch.tensor([self.prompt_ids(c)])).logits[0, -1] for c in conversations]
        return torch.stack(rows).float().softmax(-1)

    def replies(
        self, conversations: Sequence[Sequence[Message]], temperature: float = 0.0, seed: int = 0, batch: int = 50,
        limit: int = 48,
    ) -> list[str]:  # fmt: skip
        """One reply per conversation, greedy at temperature 0, cut at `limit` tokens; in the order of the input."""
        prompts = [self.prompt_ids(c) for c in conversations]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        generator = torch.Generator().manual_seed(seed)
        replies = [""] * len(prompts)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            for index, ids in zip(chosen, self._sample([prompts[i] for i in chosen], temperature, generator, limit), strict=True):
                replies[index] = self.tokenizer.decode(ids, skip_special_tokens=False)
        return replies

    @torch.inference_mode()
    def _sample(self, prompts: list[list[int]], temperature: float, generator: torch.Generator, limit: int) -> list[list[int]]:
        from transformers import DynamicCache

        longest = max(len(p) for p in prompts)
        ids = torch.tensor([[self.pad] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        replies: list[list[int]] = [[] for _ in prompts]
        open_rows = torch.ones(len(prompts), dtype=torch.bool)
        cache = DynamicCache(config=self.model.config)
        for _ in range(limit):
            out = self.model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            logits = out.logits[:, -1].float()
            if temperature == 0:
                chosen = logits.argmax(-1)
            else:
                chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]
            open_rows &= chosen != self.end
            for row in open_rows.nonzero()[:, 0].tolist():
                replies[row].append(int(chosen[row]))
            if not open_rows.any():
                break
            ids, positions = chosen[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones(len(prompts), 1, dtype=mask.dtype)], 1)
        return replies
