"""Looks at a checkpoint's headers against its architecture: whole, nothing unknown, right shapes. Reads no weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from openclaw_core.checkpoint.carried import carried_names
from openclaw_core.checkpoint.checks import check_head, check_rope_buffers
from openclaw_core.checkpoint.families import RULES
from openclaw_core.checkpoint.hf import HfReader
from openclaw_core.checkpoint.mapping import Layout, Mapping, Shape, build_mapping, check_names, model_tensors, sniff_layout
from openclaw_core.checkpoint.torch_dist import TorchDistReader
from openclaw_core.errors import UserError
from openclaw_core.models.architecture import VOCAB_DIVISOR, Architecture, padded_vocab


@dataclass(frozen=True)
class Examined:
    """A whole checkpoint: how its tensors map, which of them no conversion needs (with the reason), and their dtypes.

    carried names tensors that are copied, not mapped.
    """

    mapping: Mapping
    layout: Layout
    left_out: dict[str, str]
    dtypes: dict[str, torch.dtype]
    carried: tuple[str, ...] = ()


def examine_hf(
    reader: HfReader, arch: Architecture, *, allow: Iterable[str] = (), tp: int = 1, divisor: int = VOCAB_DIVISOR
) -> Examined:
    """A Hugging Face folder against an architecture; tp and divisor set the padding of the layout to be written.

    dtypes are by Hugging Face name. Raises UserError or Findings naming every missing, unknown or misshapen tensor.
    """
    layout = Layout(padded_vocab(arch.vocab, divisor, tp), stacked=not arch.dense_layers)
    mapping = build_mapping(RULES[arch.family], arch, layout)
    left_out = check_head(reader, arch) | check_rope_buffers(reader, arch)
    carried = tuple(carried_names(reader.entries, arch))
    apart = {*left_out, *carried}
    present = {name: entry.shape for name, entry in reader.entries.items() if name not in apart}
    allowed = check_names(str(reader.folder), mapping.hf, present, allow)
    left_out |= dict.fromkeys(allowed, "allowed to be left out")
    return Examined(mapping, layout, left_out, {name: reader.entries[name].dtype for name in mapping.hf}, carried)


def examine_torch_dist(reader: TorchDistReader, arch: Architecture, *, allow: Iterable[str] = ()) -> Examined:
    """A torch_dist checkpoint of any layout against an architecture; optimizer and random state are left out by name.

    dtypes are by torch_dist name. Raises UserError or Findings naming every missing, unknown or misshapen tensor.
    """
    stored = reader.contents.tensors
    present: dict[str, Shape] = {name: stored[name].shape for name in model_tensors(stored)}
    layout = sniff_layout(present)
    if layout.padded < arch.vocab:
        raise UserError(
            f"{reader.folder} has {layout.padded} embedding rows, its config says vocab_size={arch.vocab}.",
            "Name the config of the model it came from.",
        )
    mapping = build_mapping(RULES[arch.family], arch, layout)
    allowed = check_names(str(reader.folder), mapping.stored, present, allow)
    left_out = dict.fromkeys(allowed, "allowed to be left out")
    skipped = len(stored) - len(present)
    if skipped:
        left_out[f"{skipped} tensors of optimizer and random state"] = "not part of the model"
    return Examined(mapping, layout, left_out, {name: stored[name].dtype for name in mapping.stored})
