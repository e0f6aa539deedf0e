"""Ranks that load a converted checkpoint with megatron itself, compute logits, and save it in megatron's own ways."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import torch

from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.builder import build_model, transformer_config
from openclaw_core.models.megatron.packing import SequenceIds, make_pack
from openclaw_core.models.megatron.parallel import ParallelSizes

stored = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("stored.py"))))
LAYOUTS = {"one": ParallelSizes(), "tp2": ParallelSizes(tensor=2), "pp2": ParallelSizes(pipeline=2)}


def load_and_save(rank: int, ranks: int, folder: Path, meet) -> None:
    for name, sizes in LAYOUTS.items():
        world = sizes.model_ranks
        if rank >= world:
            continue
        device = parallel.start(meet(name, world), sizes, seed=1)
        for kind in json.loads((folder / "kinds.json").read_text()):
            arch = architecture_from_hf(folder / kind).text_alone()
            model = build_model(arch, sizes, torch.float32, device=device, trainable=False, random_weights=True)
            stored.load(model, folder / f"{kind}.td" / "release")
            pack = make_pack([SequenceIds(tuple(range(5, 6)), tuple(range(6, 25)))], device, multiple=1)
            stored.run(
                model, lambda model=model, pack=pack: model(pack), len(pack.input_ids), folder / f"{kind}.{name}.{rank}.pt"
            )
            stored.save(model, folder / f"{kind}.{name}.saved", {})
            stored.save(model, folder / f"{kind}.{name}.split", {"singleton_local_shards": True})
            if name == "one":
                stored.load(plain(arch, sizes), folder / f"{kind}.td" / "release")
        parallel.stop()


def plain(arch, sizes: ParallelSizes):
    """A GPTModel of megatron's own local spec."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    return GPTModel(
        transformer_config(arch, sizes, torch.float32, recompute=False, random_weights=True),
        get_gpt_layer_local_spec(qk_layernorm=arch.qk_norm, normalization="RMSNorm"),
        vocab_size=arch.vocab,
        max_sequence_length=64,
        share_embeddings_and_output_weights=arch.tied,
        position_embedding_type="rope",
    )
