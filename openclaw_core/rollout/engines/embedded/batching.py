"""Continuous batching: waiting requests are prefilled together and join the running rows; a step adds one token to each."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import torch

from openclaw_core.rollout.engines.embedded.kv import DecodeView, PrefillView
from openclaw_core.rollout.engines.embedded.model import EngineModel
from openclaw_core.rollout.engines.embedded.prompt_scores import score_prompt
from openclaw_core.rollout.engines.embedded.request import Request
from openclaw_core.rollout.engines.embedded.sampling import SamplingVectors, sample, scaled_logprobs, top_pairs, watched_pairs
from openclaw_core.rollout.engines.embedded.stopping import finish_reason

_PREFILL_TOKENS = 16384


class Batcher:
    """Owns the running rows and the KV cache. Not thread-safe: one thread calls it."""

    def __init__(self, model: EngineModel, *, max_rows: int, context_length: int, version: str) -> None:
        self.model = model
        self.max_rows = max_rows
        self.version = version
        self.waiting: deque[Request] = deque()
        self.rows: list[Request] = []
        self._pool = model.new_pool(max_rows, context_length)
        self._vectors: SamplingVectors | None = None

    @property
    def idle(self) -> bool:
        return not self.rows and not self.waiting

    @torch.inference_mode()
    def step(self, *, admit: bool = True) -> None:
        """Admits what fits, then one token for every running row."""
        if admit and self.waiting and len(self.rows) < self.max_rows:
            self._prefill(self._next_group())
        if self.rows:
            self._decode()

    def abort(self, rid: str | None) -> None:
        """Ends requests by id (None: all) with what they have."""
        chosen = [slot for slot, request in enumerate(self.rows) if rid in (None, request.rid)]
        ended = [request for request in self.waiting if rid in (None, request.rid)]
        for request in ended:
            self.waiting.remove(request)
        ended += [self.rows[slot] for slot in chosen]
        self._remove(chosen)
        for request in ended:
            request.end({"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}, self.version)

    def retract(self) -> None:
        """Puts the running rows back in front of the queue; their cache is computed anew when they return."""
        for request in self.rows:
            request.retractions += 1
        self.waiting.extendleft(reversed(self.rows))
        self._remove(range(len(self.rows)))

    def fail_all(self, error: str) -> None:
        """Ends every request with an error, after a step that went wrong."""
        requests = [*self.rows, *self.waiting]
        self.rows.clear()
        self.waiting.clear()
        self._vectors = None
        self._pool.free()
        for request in requests:
            request.fail(error, self.version)

    def new_version(self, version: str) -> None:
        for request in [*self.rows, *self.waiting]:
            if request.output_ids:
                request.version_changes.append((self.version, len(request.output_ids)))
        self.version = version

    def flush(self) -> bool:
        """Frees the cache; False while rows need it."""
        if self.rows:
            return False
        self._pool.free()
        return True

    def _next_group(self) -> list[Request]:
        """First come first served, up to the free rows and a budget of padded tokens."""
        group: list[Request] = []
        longest = 0
        while self.waiting and len(self.rows) + len(group) < self.max_rows:
            longest = max(longest, len(self.waiting[0].tokens))
            if group and longest * (len(group) + 1) > _PREFILL_TOKENS:
                break
            group.append(self.waiting.popleft())
        return group

    def _prefill(self, group: Sequence[Request]) -> None:
        device, first = self.model.device, len(self.rows)
        prompts = [request.tokens for request in group]
        width = max(map(len, prompts))
        ids = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts], device=device)
        columns = torch.arange(width, device=device)
        self._pool.reserve(first + len(group), width)
        # Joined before the forward, so that a step that fails ends these requests too.
        self.rows.extend(group)
        self._vectors = None
        causal = (columns <= columns[:, None])[None, None]
        hidden = self.model.hidden(ids, columns.expand(len(group), -1), causal, PrefillView(self._pool, first))
        for row, request in enumerate(group):
            if request.input_start is not None and not request.input_logprobs:
                score_prompt(request, hidden[row], self.model)
        ends = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        self._emit(first, hidden[torch.arange(len(group), device=device), ends], self._vectors_of(group))

    def _decode(self) -> None:
        device, rows = self.model.device, self.rows
        places = [len(request.input_ids) + len(request.output_ids) - 1 for request in rows]
        self._pool.reserve(len(rows), max(places) + 1)
        positions = torch.tensor(places, device=device)
        last = torch.tensor([request.output_ids[-1] for request in rows], device=device)
        columns = torch.arange(max(places) + 1, device=device)
        seen = (columns <= positions[:, None])[:, None, None]
        hidden = self.model.hidden(last[:, None], positions[:, None], seen, DecodeView(self._pool, positions))
        if self._vectors is None:
            self._vectors = self._vectors_of(rows)
        self._emit(0, hidden[:, 0], self._vectors)

    def _vectors_of(self, rows: Sequence[Request]) -> SamplingVectors:
        return SamplingVectors.of([request.params for request in rows], self.model.device)

    def _emit(self, first: int, hidden: torch.Tensor, vectors: SamplingVectors) -> None:
        """Samples a token for rows first.. from their hidden states [n, H] and lets finished rows leave."""
        rows = self.rows[first:]
        logits = self.model.logits(hidden)
        self._hold_back_stops(rows, logits)
        logprobs = scaled_logprobs(logits, vectors.temperature)
        uniforms = torch.tensor([request.uniform() for request in rows], dtype=torch.float64, device=self.model.device)
        ids = sample(logprobs, vectors, uniforms)
        chosen = logprobs.gather(-1, ids[:, None])[:, 0].tolist()
        tops = top_pairs(logprobs, [request.top for request in rows])
        finished: list[int] = []
        for row, (request, token, logprob) in enumerate(zip(rows, ids.tolist(), chosen, strict=True)):
            if not math.isfinite(logprob):
                request.error = f"The model of weight version {self.version} gave logits that aren't finite numbers."
                finished.append(first + row)
                continue
            request.output_ids.append(token)
            request.output_logprobs.append(logprob)
            if request.top:
                request.output_top.append(tops[row])
            if request.watched_ids:
                request.output_watched.append(watched_pairs(logprobs[row], request.watched_ids))
            request.reason = finish_reason(request, self.model)
            if request.reason is not None:
                finished.append(first + row)
        ended = [self.rows[slot] for slot in finished]
        self._remove(finished)
        for request in ended:
            request.close(self.version)

    def _hold_back_stops(self, rows: Sequence[Request], logits: torch.Tensor) -> None:
        for row, request in enumerate(rows):
            if len(request.output_ids) < request.params.min_new_tokens:
                stops = sorted(i for i in self.model.stop_ids | request.params.stop_token_ids if i < logits.shape[-1])
                logits[row, stops] = torch.finfo(logits.dtype).min

    def _remove(self, slots: Iterable[int]) -> None:
        """Frees slots; the last row moves into each hole, so that the cache stays packed."""
        for slot in sorted(slots, reverse=True):
            last = self.rows.pop()
            if slot < len(self.rows):
                self._pool.move(len(self.rows), slot, len(last.tokens))
                self.rows[slot] = last
            self._vectors = None
