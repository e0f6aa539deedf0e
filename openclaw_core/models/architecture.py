"""What a model is, read from its own config. No torch here: plans and dry runs need these facts on any machine."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_core.errors import Findings, UserError

FAMILIES = {
    "qwen3": "qwen3",
    "qwen2": "qwen2",
    "llama": "llama",
    "qwen3_moe": "qwen3_moe",
    "qwen2_moe": "qwen2_moe",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "deepseek_v3": "deepseek_v3",
}
NESTED = ("qwen3_vl", "qwen3_vl_text")
REFUSED = {
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"),
        "Its linear-attention layers are in megatron-core 0.16.1 (GatedDeltaNet), but not so that they can be trusted: with "
        "the zero-centred norms of this family megatron reads the layer's output norm zero-centred too, where the release "
        "isn't, so bf16 weights don't survive the way there and back bit by bit; and the layer takes no packed sequences.",
    ),
    **dict.fromkeys(
        ("qwen3_vl_moe", "qwen3_vl_moe_text"),
        "Its releases keep all experts of a layer in one transposed tensor, for which no mapping is declared.",
    ),
    "llama4": "Its layers differ in rope and attention windows.",
    "gpt_oss": "Its experts have biases and its attention has sinks, for which no mapping is declared.",
    "gemma3": "Its layers differ in rope and attention windows.",
}
VOCAB_DIVISOR = 128


@dataclass(frozen=True)
class LatentAttention:
    """Sizes of DeepSeek's multi-head latent attention; q_rank is 0 where queries aren't compressed."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True)
class Architecture:
    """The facts that decide shapes and numbers of a decoder.

    vocab counts the rows of the embedding in the Hugging Face checkpoint (without padding for tensor parallelism);
    rope_scaling holds every rope parameter apart from the base, or None for plain rope. experts is 0 for a dense model;
    dense_layers are the layers without experts in one that has them. prefix is what the text tower's names begin with.
    """

    family: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_theta: float
    norm_eps: float
    tied: bool
    qk_norm: bool
    qkv_bias: bool
    max_position: int
    dtype: str
    rope_scaling: dict[str, Any] | None = field(default=None, hash=False)
    experts: int = 0
    experts_per_token: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: tuple[int, ...] = ()
    mla: LatentAttention | None = None
    prefix: str = "model."

    @property
    def sparse_layers(self) -> tuple[int, ...]:
        """Layers whose MLP is a set of experts."""
        return tuple(layer for layer in range(self.layers) if layer not in self.dense_layers) if self.experts else ()

    @property
    def parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (q + 2 * kv) + q * self.hidden + (q + 2 * kv) * self.qkv_bias
        attention += 2 * self.head_dim * self.qk_norm
        if self.mla is not None:
            attention = _latent_parameters(self.mla, self.hidden, self.heads)
        sparse = len(self.sparse_layers)
        experts = self.experts * (self.hidden + 3 * self.hidden * self.moe_ffn + (self.mla is not None))
        shared = 3 * self.hidden * self.shared_ffn + self.hidden * (self.family == "qwen2_moe")
        mlps = (self.layers - sparse) * 3 * self.hidden * self.ffn + sparse * (experts + shared)
        rest = self.hidden + self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + 2 * self.hidden) + mlps + rest


def _latent_parameters(mla: LatentAttention, hidden: int, heads: int) -> int:
    queries = heads * (mla.nope_dim + mla.rope_dim)
    into = (hidden + queries + 1) * mla.q_rank if mla.q_rank else hidden * queries
    keys = hidden * (mla.kv_rank + mla.rope_dim) + mla.kv_rank + mla.kv_rank * heads * (mla.nope_dim + mla.v_dim)
    return into + keys + heads * mla.v_dim * hidden


def padded_vocab(vocab: int, divisor: int = VOCAB_DIVISOR, tp: int = 1) -> int:
    """Rows of megatron's embedding: vocab rounded up to a multiple of divisor x tp."""
    multiple = divisor * tp
    return -(-vocab // multiple) * multiple


def architecture_from_hf(folder: str | Path) -> Architecture:
    """The architecture that a Hugging Face folder's config.json states.

    Raises UserError when there is no readable config.json or its model type is unknown, and Findings naming every
    missing, contradictory or unsupported field.
    """
    return architecture_from_config(read_config(folder), str(folder))


def read_config(folder: str | Path) -> dict[str, Any]:
    """config.json of a Hugging Face folder as it stands."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} has no config.json.", "Point at a Hugging Face model folder.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read as JSON: {error}.", "Fetch the model again.") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} doesn't hold a JSON object.", "Fetch the model again.")
    return config


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the language model: text_config where it is nested, with the outer
    tie_word_embeddings and dtype where the inner part doesn't say."""
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return config
    outer = {key: config[key] for key in ("tie_word_embeddings", "torch_dtype", "dtype") if key in config}
    return {**outer, **inner}


def rope_places(config: dict[str, Any]) -> dict[str, float]:
    """Every place of a config that states the rope base, with its value."""
    text = text_config(config)
    places: dict[str, Any] = {"rope_theta": text.get("rope_theta")}
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(text.get(key), dict):
            places[f"{key}.rope_theta"] = text[key].get("rope_theta")
    return {place: float(value) for place, value in places.items() if isinstance(value, int | float)}


def architecture_from_config(config: dict[str, Any], where: str) -> Architecture:
    """As architecture_from_hf, from the parsed config; where names the source in messages."""
    text = text_config(config)
    model_type = text.get("model_type") or config.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        reason = REFUSED.get(str(model_type)) or REFUSED.get(str(config.get("model_type")), "")
        supported = ", ".join(sorted(set(FAMILIES) - {"qwen3_vl_text"}))
        raise UserError(f"{where}: model type {model_type!r} isn't supported.", f"{reason} Supported: {supported}.".lstrip())
    problems: list[tuple[str, str]] = []
    heads = _integer(text, "num_attention_heads", problems)
    hidden = _integer(text, "hidden_size", problems)
    kv_heads = _integer(text, "num_key_value_heads", problems) if text.get("num_key_value_heads") is not None else heads
    head_dim = _integer(text, "head_dim", problems) if text.get("head_dim") is not None else hidden // max(heads, 1)
    layers = _integer(text, "num_hidden_layers", problems)
    rope_theta, scaling = _rope(text, problems)
    if heads and kv_heads and heads % kv_heads:
        problems.append(
            (f"num_attention_heads={heads} isn't a multiple of num_key_value_heads={kv_heads}.", "Check both fields.")
        )
    _refuse_unsupported(text, family, problems)
    architecture = Architecture(
        family=family,
        model_type=str(model_type),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=_integer(text, "intermediate_size", problems),
        vocab=_integer(text, "vocab_size", problems),
        rope_theta=rope_theta,
        rope_scaling=scaling,
        norm_eps=_number(text, "rms_norm_eps", problems),
        tied=_tied(config, text, problems),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        qkv_bias=family in ("qwen2", "qwen2_moe") and text.get("qkv_bias", True),
        max_position=_integer(text, "max_position_embeddings", problems),
        dtype=str(text.get("dtype") or text.get("torch_dtype") or "float32").removeprefix("torch."),
        prefix="model.language_model." if model_type in NESTED else "model.",
        **(_experts(text, family, layers, problems) if family in ("qwen3_moe", "qwen2_moe", "deepseek_v3") else {}),
        mla=_latent(text, problems) if family == "deepseek_v3" else None,
    )
    if problems:
        raise Findings(f"{where}: config.json can't be used.", problems)
    return architecture


def _experts(text: dict[str, Any], family: str, layers: int, problems: list[tuple[str, str]]) -> dict[str, Any]:
    """The fields of a mixture of experts, from the names that each family gives them."""
    moe_ffn = _integer(text, "moe_intermediate_size", problems)
    shared = 0
    if family == "deepseek_v3":
        experts = _integer(text, "n_routed_experts", problems)
        shared = moe_ffn * _integer(text, "n_shared_experts", problems) if text.get("n_shared_experts") else 0
        dense = tuple(range(min(int(text.get("first_k_dense_replace", 0)), layers)))
        if text.get("moe_layer_freq", 1) != 1:
            problems.append((f"moe_layer_freq={text['moe_layer_freq']}: only 1 is mapped.", "Use another model."))
    else:
        experts = _integer(text, "num_experts" if "num_experts" in text else "num_local_experts", problems)
        shared = _integer(text, "shared_expert_intermediate_size", problems) if family == "qwen2_moe" else 0
        only, step = text.get("mlp_only_layers") or [], int(text.get("decoder_sparse_step", 1))
        dense = tuple(layer for layer in range(layers) if layer in only or (layer + 1) % max(step, 1))
    return {
        "experts": experts,
        "experts_per_token": _integer(text, "num_experts_per_tok", problems),
        "moe_ffn": moe_ffn,
        "shared_ffn": shared,
        "dense_layers": dense,
    }


def _latent(text: dict[str, Any], problems: list[tuple[str, str]]) -> LatentAttention:
    keys = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank = _integer(text, "q_lora_rank", problems) if text.get("q_lora_rank") is not None else 0
    return LatentAttention(rank, *(_integer(text, key, problems) for key in keys))


def _integer(text: dict[str, Any], key: str, problems: list[tuple[str, str]]) -> int:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        problems.append((f"{key}={value!r} isn't a positive integer.", "Take the config of the model's release."))
        return 0
    return value


def _number(text: dict[str, Any], key: str, problems: list[tuple[str, str]]) -> float:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        problems.append((f"{key}={value!r} isn't a positive number.", "Take the config of the model's release."))
        return 0.0
    return float(value)


def _tied(config: dict[str, Any], text: dict[str, Any], problems: list[tuple[str, str]]) -> bool:
    value = text.get("tie_word_embeddings", False)
    outer = config.get("tie_word_embeddings", value)
    if not isinstance(value, bool) or outer != value:
        problems.append(
            (f"tie_word_embeddings is {outer!r} outside and {value!r} in the text config.", "Make both one true or false.")
        )
        return False
    return value


def _rope(text: dict[str, Any], problems: list[tuple[str, str]]) -> tuple[float, dict[str, Any] | None]:
    """The rope base and the other rope parameters (None for plain rope), from the old and the new place alike."""
    places = rope_places(text)
    if len(set(places.values())) > 1:
        problems.append(
            (
                f"The rope base differs: {', '.join(f'{k}={v:g}' for k, v in places.items())}.",
                "Keep the one the model was trained with.",
            )
        )
    if not places:
        problems.append(
            (
                "No rope base: neither rope_theta nor rope_parameters.rope_theta is given.",
                "Add the one the model was trained with.",
            )
        )
    base = next(iter(places.values()), 0.0)
    blocks = [text[key] for key in ("rope_parameters", "rope_scaling") if isinstance(text.get(key), dict)]
    if any(
        "rope_type" not in block and "type" not in block and any(isinstance(v, dict) for v in block.values()) for block in blocks
    ):
        problems.append(("rope_parameters holds one set per layer type.", "Models whose layers differ in rope aren't supported."))
        return base, None
    scaling: dict[str, Any] = {}
    for block in blocks:
        scaling.update({k: v for k, v in block.items() if k not in ("rope_theta", "type", "rope_type") and v is not None})
        scaling["rope_type"] = block.get("rope_type") or block.get("type") or "default"
    if scaling.get("rope_type", "default") == "default":
        return base, None
    return base, scaling


def _refuse_unsupported(text: dict[str, Any], family: str, problems: list[tuple[str, str]]) -> None:
    if text.get("use_sliding_window"):
        problems.append(("use_sliding_window=true: attention windows aren't supported.", "Use a model with full attention."))
    for key in ("attention_bias", "mlp_bias"):
        if text.get(key) and not (family in ("qwen2", "qwen2_moe") and key == "attention_bias"):
            problems.append((f"{key}=true: {family} models with these biases aren't supported.", "Use a release without them."))
    activation = text.get("hidden_act", "silu")
    if activation != "silu":
        problems.append((f"hidden_act={activation!r}, but {family} models use silu.", "Check the config."))
    quantised = text.get("quantization_config") or {}
    if quantised and not (quantised.get("quant_method") == "fp8" and quantised.get("weight_block_size")):
        method = quantised.get("quant_method", "?")
        problems.append((f"The weights are quantised ({method}).", "Use the bf16 release, or one in FP8 blocks."))
    partial = text.get("partial_rotary_factor", 1.0)
    if partial not in (None, 1, 1.0):
        problems.append((f"partial_rotary_factor={partial}: rope on a part of the head isn't supported.", "Use another model."))


def architecture_from_torch_dist(path: str | Path) -> Architecture:
    """The architecture of a torch_dist checkpoint: from the config carried with it, else from megatron's own arguments.

    path is the folder with .metadata, or the one above it. Raises UserError when the checkpoint states neither.
    """
    from openclaw_core.checkpoint.sniff import carried_config, sniff

    found = sniff(path)
    carried = carried_config(found)
    if carried is not None:
        return architecture_from_hf(carried)
    from openclaw_core.checkpoint.torch_dist import TorchDistReader

    folder = found.folder
    arguments = TorchDistReader(folder).common().get("args")
    if arguments is None:
        raise UserError(
            f"{folder} states no architecture (no hf/config.json beside it, no args in its common state).",
            "Name its Hugging Face config too.",
        )
    return architecture_from_megatron(vars(arguments) if not isinstance(arguments, dict) else arguments, str(folder))


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
