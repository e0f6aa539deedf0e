"""Two ranks that build the same tiny models at several parallel sizes and write down what they compute."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.builder import build_model
from openclaw_core.models.megatron.packing import SequenceIds, make_pack
from openclaw_core.models.megatron.parallel import ParallelSizes, Rendezvous
from openclaw_core.models.megatron.weights import fingerprint, load_weights

LAYOUTS = {
    "one": ParallelSizes(),
    "tp2": ParallelSizes(tensor=2),
    "tp2sp": ParallelSizes(tensor=2, sequence_parallel=True),
    "pp2": ParallelSizes(pipeline=2),
}


def logits(rank: int, ranks: int, folder: Path, ports: list[int]) -> None:
    """Logits of a pack of three sequences, for each shape of model and each layout."""
    from megatron.core import parallel_state

    sequences = [SequenceIds(s[0], s[1]) for s in json.loads((folder / "sequences.json").read_text())]
    for (name, sizes), port in zip(LAYOUTS.items(), ports, strict=False):
        world = 1 if name == "one" else ranks
        if rank >= world:
            continue
        device = parallel.start(Rendezvous("127.0.0.1", port, rank, world), sizes, seed=1)
        for kind in ("tied", "untied"):
            model = build_model(architecture_from_hf(folder / kind), sizes, torch.float32, device=device, trainable=False)
            load_weights(model, folder / kind)
            pack = make_pack(sequences, device, multiple=sizes.tensor if sizes.sequence_parallel else 1)
            with torch.no_grad():
                out = run(model, pack, parallel_state)
            if parallel_state.is_pipeline_last_stage():
                torch.save(out, folder / f"{name}.{kind}.tp{parallel_state.get_tensor_model_parallel_rank()}.pt")
            print(name, kind, fingerprint(model), flush=True)
        parallel.stop()


def run(model, pack, parallel_state):
    from megatron.core.pipeline_parallel import get_forward_backward_func

    def step(_, model):
        return model(pack), lambda out, non_loss_data=True: out

    answer = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=None,
        model=[model],
        num_microbatches=1,
        seq_length=1,
        micro_batch_size=1,
        forward_only=True,
        collect_non_loss_data=True,
    )
    return answer[0] if answer else None
