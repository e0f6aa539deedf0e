"""What a model is, read from its own config. No torch here: plans and dry runs need these facts on any machine."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_core.errors import Findings, UserError

FAMILIES = {"qwen3": "qwen3", "qwen2": "qwen2", "llama": "llama"}
VOCAB_DIVISOR = 128


@dataclass(frozen=True)
class Architecture:
    """The facts that decide shapes and numbers of a dense decoder.

    vocab counts the rows of the embedding in the Hugging Face checkpoint (without padding for tensor parallelism);
    rope_scaling holds every rope parameter apart from the base, or None for plain rope.
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

    @property
    def parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (q + 2 * kv) + q * self.hidden
        biases = (q + 2 * kv) * self.qkv_bias
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        layer = attention + biases + norms + 3 * self.hidden * self.ffn
        return self.layers * layer + self.hidden + self.vocab * self.hidden * (1 if self.tied else 2)


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
        raise UserError(f"{where}: model type {model_type!r} isn't supported.", f"Supported: {', '.join(sorted(FAMILIES))}.")
    problems: list[tuple[str, str]] = []
    heads = _integer(text, "num_attention_heads", problems)
    hidden = _integer(text, "hidden_size", problems)
    kv_heads = _integer(text, "num_key_value_heads", problems) if text.get("num_key_value_heads") is not None else heads
    head_dim = _integer(text, "head_dim", problems) if text.get("head_dim") is not None else hidden // max(heads, 1)
    rope_theta, scaling = _rope(text, problems)
    if heads and kv_heads and heads % kv_heads:
        problems.append(
            (f"num_attention_heads={heads} isn't a multiple of num_key_value_heads={kv_heads}.", "Check both fields.")
        )
    _refuse_unsupported(text, family, problems)
    architecture = Architecture(
        family=family,
        model_type=str(model_type),
        layers=_integer(text, "num_hidden_layers", problems),
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
        qk_norm=family == "qwen3",
        qkv_bias=family == "qwen2",
        max_position=_integer(text, "max_position_embeddings", problems),
        dtype=str(text.get("dtype") or text.get("torch_dtype") or "float32").removeprefix("torch."),
    )
    if problems:
        raise Findings(f"{where}: config.json can't be used.", problems)
    return architecture


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
        if text.get(key) and not (family == "qwen2" and key == "attention_bias"):
            problems.append((f"{key}=true: {family} models with these biases aren't supported.", "Use a release without them."))
    activation = text.get("hidden_act", "silu")
    if activation != "silu":
        problems.append((f"hidden_act={activation!r}, but {family} models use silu.", "Check the config."))
    if text.get("quantization_config"):
        method = text["quantization_config"].get("quant_method", "?")
        problems.append((f"The weights are quantised ({method}).", "Use the bf16 release."))
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
