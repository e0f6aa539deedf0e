"""Block-scaled FP8 checkpoints (weight_block_size 128 x 128), read as the bf16 weights that they stand for."""

from __future__ import annotations

from pathlib import Path

import torch

from openclaw_core.checkpoint.hf import Entry, HfReader, map_entry
from openclaw_core.errors import Findings, UserError
from openclaw_core.models.hf_config import read_config

SCALE = "_scale_inv"
MADE = torch.bfloat16


def open_hf(folder: Path) -> HfReader:
    """A reader of a folder's tensors; one that dequantises where the config says FP8 in blocks."""
    settings = read_config(folder).get("quantization_config")
    if not isinstance(settings, dict):
        return HfReader(folder)
    block = settings.get("weight_block_size")
    sizes = block if isinstance(block, list) and len(block) == 2 else [0]
    if settings.get("quant_method") != "fp8" or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise UserError(
            f"{folder}: the weights are quantised ({settings.get('quant_method', '?')}, blocks {block}).",
            "FP8 in blocks is dequantised; for anything else use the bf16 release.",
        )
    return BlockFp8Reader(folder, (sizes[0], sizes[1]))


class BlockFp8Reader(HfReader):
    """Tensors stored as float8_e4m3fn with a scale per block are read as bf16: value x scale in fp32, rounded once.

    Their scales (NAME_scale_inv) are no tensors of their own here. Raises Findings where a scale is missing, has the wrong
    shape, or belongs to nothing.
    """

    def __init__(self, folder: Path, block: tuple[int, int]) -> None:
        super().__init__(folder)
        self._block = block
        self._scales: dict[str, str] = {}
        findings = []
        for name, entry in list(self.entries.items()):
            if name.endswith(SCALE) and name.removesuffix(SCALE) not in self.entries:
                findings.append((f"{name} scales nothing.", ""))
            if entry.dtype != torch.float8_e4m3fn:
                continue
            scale = self.entries.get(name + SCALE)
            if len(entry.shape) != len(block):
                findings.append((f"{name} has shape {list(entry.shape)}; blocks of {list(block)} need two axes.", ""))
                continue
            if scale is not None and not scale.dtype.is_floating_point:
                findings.append((f"{name}{SCALE} holds {str(scale.dtype).removeprefix('torch.')}, no fractions.", ""))
            wanted = tuple(-(-size // width) for size, width in zip(entry.shape, block, strict=True))
            if scale is None or scale.shape != wanted:
                findings.append((f"{name}{SCALE} is {list(scale.shape) if scale else 'missing'}, needed {list(wanted)}.", ""))
            self._scales[name] = name + SCALE
        if findings:
            raise Findings(f"{folder}: FP8 weights and scales don't fit.", findings)
        self._hidden = {scale: self.entries.pop(scale) for scale in self._scales.values()}
        self._real = dict(self.entries)
        for name in self._scales:
            real = self._real[name]
            self.entries[name] = Entry(real.file, MADE, real.shape, real.start, real.stop)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> torch.Tensor:
        """As HfReader.read; a quantised tensor is made, not mapped."""
        if name not in self._scales:
            return super().read(name, rows)
        start, stop = rows or (0, self._real[name].shape[0])
        values = map_entry(self._real[name], (start, stop)).float()
        high, wide = self._block
        scale = map_entry(self._hidden[self._scales[name]], (start // high, -(-stop // high))).float()
        scale = scale.repeat_interleave(high, 0)[start % high :][: stop - start]
        for column in range(scale.shape[1]):
            values[:, column * wide : (column + 1) * wide] *= scale[:, column : column + 1]
        return values.to(MADE)
