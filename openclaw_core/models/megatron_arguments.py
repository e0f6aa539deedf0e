"""What megatron's own training arguments, kept in its checkpoints, say of a model."""

from __future__ import annotations

from typing import Any

from openclaw_core.errors import Findings
from openclaw_core.models.architecture import Architecture


def architecture_from_megatron(arguments: dict[str, Any], where: str) -> Architecture:
    """The architecture that megatron's training arguments state. Raises Findings naming what is missing or unsupported."""
    problems: list[tuple[str, str]] = []
    names = {
        "layers": "num_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "ffn": "ffn_hidden_size",
        "rope_theta": "rotary_base",
        "norm_eps": "norm_epsilon",
        "max_position": "max_position_embeddings",
    }
    facts = {ours: arguments.get(theirs) for ours, theirs in names.items()}
    problems += [
        (f"{names[ours]} isn't stated.", "Name the Hugging Face config too.") for ours, value in facts.items() if value is None
    ]
    vocab = arguments.get("vocab_size") or arguments.get("padded_vocab_size")
    if vocab is None:
        problems.append(("Neither vocab_size nor padded_vocab_size is stated.", "Name the Hugging Face config too."))
    unsupported = [
        ("num_experts", None),
        ("multi_latent_attention", False),
        ("add_bias_linear", False),
        ("swiglu", True),
        ("normalization", "RMSNorm"),
    ]
    for key, needed in unsupported:
        if (arguments.get(key, needed) or None) != (needed or None):
            problems.append((f"{key}={arguments[key]!r} isn't supported.", f"Supported: {needed!r}."))
    if problems:
        raise Findings(f"{where}: megatron's arguments can't be used.", problems)
    heads = int(facts["heads"])  # type: ignore[arg-type]
    qk_norm, qkv_bias = bool(arguments.get("qk_layernorm")), bool(arguments.get("add_qkv_bias"))
    family = "qwen3" if qk_norm else "qwen2" if qkv_bias else "llama"
    grouped = arguments.get("group_query_attention", True)
    scaling = (
        {"rope_type": "llama3", "factor": arguments.get("rope_scaling_factor")} if arguments.get("use_rope_scaling") else None
    )
    return Architecture(
        family=family, model_type=family, layers=int(facts["layers"]), hidden=int(facts["hidden"]), heads=heads,  # type: ignore[arg-type]
        kv_heads=int(arguments.get("num_query_groups") or heads) if grouped else heads,
        head_dim=int(arguments.get("kv_channels") or int(facts["hidden"]) // heads),  # type: ignore[arg-type]
        ffn=int(facts["ffn"]), vocab=int(vocab), rope_theta=float(facts["rope_theta"]), rope_scaling=scaling,  # type: ignore[arg-type]
        norm_eps=float(facts["norm_eps"]), tied=not arguments.get("untie_embeddings_and_output_weights", False),  # type: ignore[arg-type]
        qk_norm=qk_norm, qkv_bias=qkv_bias, max_position=int(facts["max_position"]),  # type: ignore[arg-type]
        dtype=str(arguments.get("params_dtype") or "float32").removeprefix("torch."),
    )  # fmt: skip
