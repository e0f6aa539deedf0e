"""What a model is, read from its own config. No torch here: plans and dry runs need these facts on any machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openclaw_core.errors import Findings, UserError
from openclaw_core.models.hf_config import (
    RELEASE,
    TIED,
    Problems,
    flag,
    integer,
    listed,
    number,
    read_config,
    refuse_unsupported,
    rope,
    rope_places,
    text_config,
)

__all__ = [
    "DENSE",
    "FAMILIES",
    "NESTED",
    "REFUSED",
    "VOCAB_DIVISOR",
    "Architecture",
    "LatentAttention",
    "UnknownModelType",
    "architecture_from_config",
    "architecture_from_hf",
    "architecture_from_torch_dist",
    "padded_vocab",
    "read_config",
    "rope_places",
]

MOST_LAYERS, MOST_EXPERTS, MOST_WIDTH, MOST_IDS = 1000, 4096, 10**6, 10**7
"""Above what any model has: a broken config must not make a list of names that fills the memory."""

FAMILIES = {
    "qwen3": "qwen3",
    "qwen2": "qwen2",
    "llama": "llama",
    "qwen3_moe": "qwen3_moe",
    "qwen2_moe": "qwen2_moe",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe": "qwen3_vl_moe",
    "qwen3_vl_moe_text": "qwen3_vl_moe",
    "deepseek_v3": "deepseek_v3",
}
NESTED = ("qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text")
REFUSED = {
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"),
        "megatron-core has its linear-attention layer (GatedDeltaNet), but with the zero-centred norms of this family it reads "
        "that layer's output norm zero-centred too, where the release isn't: the weight would be stored as w - 1, which bf16 "
        "can't undo, and megatron-core 0.16.1's layer takes no packed sequences. Train Qwen3 or Qwen3-VL; an engine serves "
        "Qwen3.5, as a judge for one, from its Hugging Face folder as it is.",
    ),
    "llama4": "Its layers differ in rope and attention windows.",
    "gpt_oss": "Its experts have biases and its attention has sinks, for which no mapping is declared.",
    "gemma3": "Its layers differ in rope and attention windows.",
}
DENSE = ("qwen3", "qwen2", "llama")
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

    def text_alone(self) -> Architecture:
        """The text tower as a model of its own: in a torch_dist nothing tells them apart."""
        return replace(self, model_type=self.family, prefix="model.")


def _latent_parameters(mla: LatentAttention, hidden: int, heads: int) -> int:
    queries = heads * (mla.nope_dim + mla.rope_dim)
    into = (hidden + queries + 1) * mla.q_rank if mla.q_rank else hidden * queries
    keys = hidden * (mla.kv_rank + mla.rope_dim) + mla.kv_rank + mla.kv_rank * heads * (mla.nope_dim + mla.v_dim)
    return into + keys + heads * mla.v_dim * hidden


def padded_vocab(vocab: int, divisor: int = VOCAB_DIVISOR, tp: int = 1) -> int:
    """Rows of megatron's embedding: vocab rounded up to a multiple of divisor x tp."""
    multiple = divisor * tp
    return -(-vocab // multiple) * multiple


class UnknownModelType(UserError):
    """A model type that no family has; reason is why not, where that is known, and known lists those that are converted."""

    def __init__(self, what: str, reason: str, known: str) -> None:
        super().__init__(what, f"{reason} {known}".lstrip())
        self.reason = reason


def architecture_from_hf(folder: str | Path) -> Architecture:
    """The architecture that a Hugging Face folder's config.json states.

    Raises UserError when there is no readable config.json, UnknownModelType for one of no family, and Findings naming every
    missing, contradictory or unsupported field.
    """
    return architecture_from_config(read_config(folder), str(folder))


def architecture_from_config(config: dict[str, Any], where: str) -> Architecture:
    """As architecture_from_hf, from the parsed config; where names the source in messages."""
    text = text_config(config)
    model_type = text.get("model_type") or config.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        reason = REFUSED.get(str(model_type)) or REFUSED.get(str(config.get("model_type")), "")
        supported = ", ".join(sorted(name for name in FAMILIES if not name.endswith("_text")))
        raise UnknownModelType(f"{where}: model type {model_type!r} isn't supported.", reason, f"Supported: {supported}.")
    problems: Problems = []
    heads = integer(text, "num_attention_heads", problems)
    hidden = integer(text, "hidden_size", problems, MOST_WIDTH)
    kv_heads = integer(text, "num_key_value_heads", problems) if text.get("num_key_value_heads") is not None else heads
    head_dim = integer(text, "head_dim", problems) if text.get("head_dim") is not None else hidden // max(heads, 1)
    layers = integer(text, "num_hidden_layers", problems, MOST_LAYERS)
    rope_theta, scaling = rope(text, problems)
    if heads and kv_heads and heads % kv_heads:
        problems.append(
            (f"num_attention_heads={heads} isn't a multiple of num_key_value_heads={kv_heads}.", "Check both fields.")
        )
    if family != "deepseek_v3" and heads and hidden and (head_dim % 2 or (text.get("head_dim") is None and not head_dim)):
        problems.append((f"head_dim={head_dim} isn't positive and even, as rope needs.", RELEASE))
    refuse_unsupported(text, family, problems)
    architecture = Architecture(
        family=family,
        model_type=str(model_type),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=integer(text, "intermediate_size", problems),
        vocab=integer(text, "vocab_size", problems, MOST_IDS),
        rope_theta=rope_theta,
        rope_scaling=scaling,
        norm_eps=number(text, "rms_norm_eps", problems),
        tied=flag(text, TIED, False, problems),
        qk_norm=family.startswith("qwen3"),
        qkv_bias=family in ("qwen2", "qwen2_moe") and flag(text, "qkv_bias", True, problems),
        max_position=integer(text, "max_position_embeddings", problems),
        dtype=str(text.get("dtype") or text.get("torch_dtype") or "float32").removeprefix("torch."),
        prefix="model.language_model." if model_type in NESTED else "model.",
        **(_experts(text, family, layers, problems) if family not in DENSE else {}),
        mla=_latent(text, problems) if family == "deepseek_v3" else None,
    )
    if problems:
        raise Findings(f"{where}: config.json can't be used.", problems)
    return architecture


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
    from openclaw_core.models.megatron_arguments import architecture_from_megatron

    return architecture_from_megatron(vars(arguments) if not isinstance(arguments, dict) else arguments, str(folder))


def _experts(text: dict[str, Any], family: str, layers: int, problems: Problems) -> dict[str, Any]:
    """The fields of a mixture of experts, from the names that each family gives them."""
    moe_ffn = integer(text, "moe_intermediate_size", problems)
    shared = 0
    if family == "deepseek_v3":
        experts = integer(text, "n_routed_experts", problems, MOST_EXPERTS)
        shared = moe_ffn * integer(text, "n_shared_experts", problems) if text.get("n_shared_experts") else 0
        first = integer(text, "first_k_dense_replace", problems) if text.get("first_k_dense_replace") else 0
        dense = tuple(range(min(first, layers)))
        if text.get("moe_layer_freq", 1) != 1:
            problems.append((f"moe_layer_freq={text['moe_layer_freq']}: only 1 is mapped.", "Use another model."))
    else:
        experts = integer(text, "num_experts" if "num_experts" in text else "num_local_experts", problems, MOST_EXPERTS)
        shared = integer(text, "shared_expert_intermediate_size", problems) if family == "qwen2_moe" else 0
        only = listed(text, "mlp_only_layers", int, problems)
        step = integer(text, "decoder_sparse_step", problems) if "decoder_sparse_step" in text else 1
        dense = tuple(layer for layer in range(layers) if layer in only or (layer + 1) % max(step, 1))
    return {
        "experts": experts,
        "experts_per_token": integer(text, "num_experts_per_tok", problems),
        "moe_ffn": moe_ffn,
        "shared_ffn": shared,
        "dense_layers": dense,
    }


def _latent(text: dict[str, Any], problems: Problems) -> LatentAttention:
    keys = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank = integer(text, "q_lora_rank", problems) if text.get("q_lora_rank") is not None else 0
    return LatentAttention(rank, *(integer(text, key, problems) for key in keys))
