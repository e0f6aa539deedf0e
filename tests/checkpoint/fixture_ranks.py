"""Writes the stored checkpoint of test_versions.py, two ranks at TP 2 with optimizer state, by the megatron-core installed:

python tests/worlds.py tests/checkpoint/fixture_ranks.py save 2 FOLDER; FOLDER/stored is what was packed.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}


def weights() -> dict[str, torch.Tensor]:
    """Every tensor of CONFIG's model, by a rule: no two tensors and no two neighbours are alike."""
    from openclaw_core.checkpoint.families import RULES
    from openclaw_core.checkpoint.mapping import Layout, build_mapping
    from openclaw_core.models.architecture import architecture_from_config

    arch = architecture_from_config(CONFIG, "here")
    shapes = build_mapping(RULES[arch.family], arch, Layout(arch.vocab)).hf
    made, start = {}, 0
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        values = (torch.arange(start, start + count) * 7919 % 509 - 254).float() / 256
        made[name], start = values.reshape(shape).to(torch.bfloat16), start + count + 1
    return made


def save(rank: int, ranks: int, folder: Path, meet) -> None:
    from megatron.core import dist_checkpointing
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    from openclaw_core.models.architecture import architecture_from_config
    from openclaw_core.models.megatron import parallel
    from openclaw_core.models.megatron.builder import build_model
    from openclaw_core.models.megatron.parallel import ParallelSizes
    from openclaw_core.models.megatron.weights import load_weights

    sizes = ParallelSizes(tensor=ranks)
    device = parallel.start(meet("fixture", ranks), sizes, seed=1)
    if rank == 0:
        (folder / "hf").mkdir()
        (folder / "stored").mkdir()
        (folder / "hf" / "config.json").write_text(json.dumps(CONFIG))
        save_file(weights(), folder / "hf" / "model.safetensors")
    dist.barrier()
    model = build_model(architecture_from_config(CONFIG, "here"), sizes, torch.bfloat16, device=device)
    load_weights(model, folder / "hf")
    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    wrapped = DistributedDataParallel(config=model.config, ddp_config=settings, module=model)
    # A step of length 0: there is optimizer state, and the weights are what they were.
    options = {"lr": 0.0, "min_lr": 0.0, "weight_decay": 0.0, "clip_grad": 0.0}
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", bf16=True, use_distributed_optimizer=True, **options), [wrapped]
    )
    for parameter in model.parameters():
        parameter.main_grad.fill_(1.0)
    optimizer.step()
    state = model.sharded_state_dict()
    metadata = {"distrib_optim_sharding_type": "fully_reshardable"}
    whole = {"model": state, "optimizer": optimizer.sharded_state_dict(state, metadata=metadata), "iteration": 3}
    dist_checkpointing.save(whole, str(folder / "stored"), content_metadata=metadata)
    if rank == 0:
        versions = {name: version(name) for name in ("megatron-core", "torch")}
        (folder / "stored" / "made_by.json").write_text(json.dumps(versions) + "\n")
    parallel.stop()
