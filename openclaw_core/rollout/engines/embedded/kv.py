"""The KV cache: one slot per running row, row r at slot r, its tokens in columns 0..length-1.

Slots stay packed: when a row leaves, the last row moves into its slot. Columns past a row's length hold leftovers that the
attention mask hides and later tokens overwrite, so rows join and leave without shifting anybody else.
"""

from __future__ import annotations

from typing import Any

import torch


class KVPool:
    """Keys and values of every layer, each [rows, heads, columns, head_dim]; grows by doubling, within its limits."""

    def __init__(
        self, layers: int, heads: int, head_dim: int, *, max_rows: int, max_columns: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._layers, self._heads, self._head_dim = layers, heads, head_dim
        self._max_rows, self._max_columns = max_rows, max_columns
        self._dtype, self._device = dtype, device
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    @property
    def rows(self) -> int:
        return self.keys[0].shape[0] if self.keys else 0

    @property
    def columns(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def reserve(self, rows: int, columns: int) -> None:
        """Makes room for rows x columns, keeping what is stored."""
        if rows <= self.rows and columns <= self.columns:
            return
        rows = min(self._max_rows, max(rows, 2 * self.rows)) if rows > self.rows else self.rows
        columns = min(self._max_columns, max(columns, 2 * self.columns, 128)) if columns > self.columns else self.columns
        for tensors in (self.keys, self.values):
            tensors[:] = [self._grown(tensors[layer] if tensors else None, rows, columns) for layer in range(self._layers)]

    def _grown(self, old: torch.Tensor | None, rows: int, columns: int) -> torch.Tensor:
        new = torch.zeros(rows, self._heads, columns, self._head_dim, dtype=self._dtype, device=self._device)
        if old is not None:
            new[: old.shape[0], :, : old.shape[2]] = old
        return new

    @torch.inference_mode()
    def move(self, source: int, target: int, length: int) -> None:
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]

    def free(self) -> None:
        self.keys.clear()
        self.values.clear()


class _View:
    """What the attention layers of transformers call as their cache; positions and masks are given explicitly."""

    is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class PrefillView(_View):
    """Stores the prompts of m new rows at slots first..first+m and attends within them only."""

    def __init__(self, pool: KVPool, first: int) -> None:
        self._pool, self._first = pool, first

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = slice(self._first, self._first + keys.shape[0])
        self._pool.keys[layer_idx][rows, :, : keys.shape[2]] = keys
        self._pool.values[layer_idx][rows, :, : keys.shape[2]] = values
        return keys, values


class DecodeView(_View):
    """Stores one token of each of the first n rows at its position [n] and attends over all columns so far."""

    def __init__(self, pool: KVPool, positions: torch.Tensor) -> None:
        self._pool, self._positions = pool, positions
        self._slots = torch.arange(positions.shape[0], device=positions.device)
        self._columns = int(positions.max()) + 1

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        all_keys, all_values = self._pool.keys[layer_idx], self._pool.values[layer_idx]
        all_keys[self._slots, :, self._positions] = keys[:, :, 0]
        all_values[self._slots, :, self._positions] = values[:, :, 0]
        rows = keys.shape[0]
        return all_keys[:rows, :, : self._columns], all_values[:rows, :, : self._columns]
