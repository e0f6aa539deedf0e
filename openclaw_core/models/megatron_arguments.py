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


def stated_fields(arguments: dict[str, Any], arch: Architecture) -> dict[str, Any]:
    """The fields of an Architecture that megatron's arguments state for a model of arch's family, as that would have them."""
    names = {
        "layers": "num_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "rope_theta": "rotary_base",
        "norm_eps": "norm_epsilon",
        "qkv_bias": "add_qkv_bias",
    }
    if arch.mla is None:
        names |= {"head_dim": "kv_channels", "qk_norm": "qk_layernorm"}
        if arguments.get("group_query_attention", True):
            names["kv_heads"] = "num_query_groups"
    if len(arch.sparse_layers) < arch.layers:
        names["ffn"] = "ffn_hidden_size"
    if arch.experts:
        names |= {"experts": "num_experts", "experts_per_token": "moe_router_topk", "moe_ffn": "moe_ffn_hidden_size"}
    found = {ours: arguments[theirs] for ours, theirs in names.items() if arguments.get(theirs) is not None}
    if "untie_embeddings_and_output_weights" in arguments:
        found["tied"] = not arguments["untie_embeddings_and_output_weights"]
    if "use_rope_scaling" in arguments and (arch.rope_scaling or {}).get("rope_type", "llama3") == "llama3":
        factor = arguments.get("rope_scaling_factor")
        scaled = {**(arch.rope_scaling or {"rope_type": "llama3"}), **({} if factor is None else {"factor": factor})}
        found["rope_scaling"] = scaled if arguments["use_rope_scaling"] else None
    return found
