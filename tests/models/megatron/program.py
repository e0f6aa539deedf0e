"""Two ranks that build the same tiny models at several parallel sizes and write down what they compute."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.builder import build_model
from openclaw_core.models.megatron.core import get_forward_backward_func, parallel_state
from openclaw_core.models.megatron.hf_weights import whole_tensors
from openclaw_core.models.megatron.packing import SequenceIds, make_pack
from openclaw_core.models.megatron.parallel import ParallelSizes
from openclaw_core.models.megatron.weights import fingerprint, load_weights

KINDS = ("qwen3", "qwen2", "llama")
LAYOUTS = {
    "one": (1, ParallelSizes()),
    "tp2": (2, ParallelSizes(tensor=2)),
    "tp2sp": (2, ParallelSizes(tensor=2, sequence_parallel=True)),
    "pp2": (2, ParallelSizes(pipeline=2)),
    "dp2": (2, ParallelSizes()),
}


def logits(rank: int, ranks: int, folder: Path, meet) -> None:
    """Logits of a pack, from a Hugging Face folder and from torch_dist, and the weights read back."""
    sequences = [SequenceIds(*s) for s in json.loads((folder / "sequences.json").read_text())]
    for name, (world, sizes) in LAYOUTS.items():
        if rank >= world:
            continue
        device = parallel.start(meet(name, world), sizes, seed=1)
        pack = make_pack(sequences, device, multiple=sizes.tensor if sizes.sequence_parallel else 1)
        for kind in KINDS:
            hashes = []
            for source in ("hf", "torch_dist"):
                model = build_model(
                    architecture_from_hf(folder / kind / "hf"), sizes, torch.float32, device=device, trainable=False
                )
                load_weights(model, folder / kind / source)
                hashes.append(fingerprint(model))
            widths: list[int] = []
            model.decoder.layers[-1].mlp.linear_fc1.register_forward_hook(lambda _, given, out, to=widths: to.append(len(out[0])))
            with torch.no_grad():
                out = forward(model, pack)
            if out is not None:
                torch.save(out, folder / f"{name}.{kind}.tp{parallel_state.get_tensor_model_parallel_rank()}.pt")
                (folder / f"{name}.{kind}.rows").write_text(json.dumps(widths))
            back = dict(whole_tensors(model))
            changed = change_last_bit(model)
            if rank == 0:
                torch.save({"hashes": [*hashes, changed], "weights": back}, folder / f"{name}.{kind}.weights.pt")
        if name == "dp2":
            (folder / f"replicas.{rank}").write_text(differing_replicas(model))
        parallel.stop()


def forward(model, pack):
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


def change_last_bit(model) -> str:
    """The fingerprint after one bit of one weight changed, on every data-parallel replica of the first shard."""
    if parallel_state.get_tensor_model_parallel_rank() == 0 and parallel_state.is_pipeline_first_stage():
        with torch.no_grad():
            bits = next(model.parameters()).view(torch.int32)
            bits[-1, -1] ^= 1
    return fingerprint(model)


def differing_replicas(model) -> str:
    if parallel_state.get_data_parallel_rank() == 1:
        with torch.no_grad():
            next(model.parameters())[0, 0] += 1
    try:
        fingerprint(model)
    except RuntimeError as error:
        return str(error)
    return ""
