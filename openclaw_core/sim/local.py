"""Answers conversations with a Hugging Face folder in this process: for measuring the base model, not for serving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from openclaw_core.types import Message


class LocalModel:
    """A causal language model with its tokenizer and chat template, in evaluation mode."""

    def __init__(self, model: Any, tokenizer: Any, thinking: bool = True) -> None:
        self.model, self.tokenizer, self.thinking = model.eval(), tokenizer, thinking
        self.end = int(tokenizer.eos_token_id)
        self.pad = int(tokenizer.pad_token_id)

    @classmethod
    def load(cls, folder: Path) -> LocalModel:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        return cls(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the conversation with the start of the next reply."""
        text = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, enable_thinking=self.thinking
        )
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
        replies = [""] * len(prompts)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                sampled = self.sample([prompts[i] for i in chosen], temperature, limit)
                for index, ids in zip(chosen, sampled, strict=True):
                    replies[index] = self.tokenizer.decode(ids, skip_special_tokens=False)
        return replies

    @torch.inference_mode()
    def sample(self, prompts: Sequence[list[int]], temperature: float, limit: int) -> list[list[int]]:
        """Reply ids of a batch of prompts, without the end of turn; draws from torch's default generator."""
        longest, device = max(len(p) for p in prompts), self.model.device
        ids = torch.tensor([[self.pad] * (longest - len(p)) + p for p in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
        how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
        out = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=limit, eos_token_id=self.end, pad_token_id=self.pad, **how
        )
        rows = out[:, longest:].tolist()
        return [row[: row.index(self.end)] if self.end in row else row for row in rows]
