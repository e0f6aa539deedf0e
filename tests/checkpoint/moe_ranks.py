"""Ranks that load converted mixtures of experts with megatron itself, compute logits, and save them in its own ways."""

from __future__ import annotations

import json
import runpy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.hf_config import read_config, text_config
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.parallel import ParallelSizes
from openclaw_core.models.megatron.reference import reference_logits, reference_model
from openclaw_core.models.routing import routing_of

stored = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("stored.py"))))
stand_in = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("grouped_experts.py"))))
IDS = list(range(5, 25))
GROUPED = "qwen3"
LAYOUTS = {
    "one": {},
    "ep2": {"expert_model_parallel_size": 2},
    "tp2": {"tensor_model_parallel_size": 2},
    "pp2": {"pipeline_model_parallel_size": 2},
}


def load_and_save(rank: int, ranks: int, folder: Path, meet) -> None:
    from megatron.core import parallel_state

    grouped = stand_in.load()
    for name, sizes in LAYOUTS.items():
        world = 2 if sizes else 1
        if rank >= world:
            continue
        parallel.start(meet(name, world), ParallelSizes(), seed=1)
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(**sizes)
        for kind in json.loads((folder / "kinds.json").read_text()):
            arch = architecture_from_hf(folder / kind)
            build = partial(reference_model, arch, routing_of(text_config(read_config(folder / kind)), arch.family), sizes)
            model = build()
            stored.load(model, folder / f"{kind}.td" / "release")
            stored.run(model, partial(reference_logits, model, IDS), len(IDS), folder / f"{kind}.{name}.{rank}.pt")
            stored.save(model, folder / f"{kind}.{name}.saved", {})
            local = build(local_names=True)
            local.load_state_dict(model.state_dict())
            stored.save(local, folder / f"{kind}.{name}.split", {"singleton_local_shards": True})
            if kind == GROUPED:
                model = build(experts=grouped)
                stored.load(model, folder / f"{kind}.td" / "release")
                stored.run(
                    model, lambda model=model: reference_logits(model, IDS), len(IDS), folder / f"grouped.{name}.{rank}.pt"
                )
                stored.save(model, folder / f"grouped.{name}.saved", {})
                stored.save(model, folder / f"grouped.{name}.split", {"singleton_local_shards": True})
        parallel.stop()
