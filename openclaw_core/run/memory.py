"""What each role needs in memory, per device and on the host: estimates, from the shapes alone.

Formulas, in bytes, for one device. b is 2 for bf16 and fp16, 4 for fp32; h hidden, q = heads x head_dim,
kv = kv_heads x head_dim, f ffn, L layers of the fullest pipeline stage, t tensor, p pipeline and d data parallel size;
s = t with sequence parallelism, else 1; c context parallel size; N tokens of a micro-batch (train.max_tokens_per_device; a
context parallel group holds c N of them, and the teacher at least one whole sequence).

shard        P = L [(h (q + 2 kv) + q h + 3 h f) / t + 2 h + 2 head_dim] + embedding (padded vocab x h / t; twice if untied) + h
weights      b P                 reference (kl_coef > 0)   b P
gradients    4 P                 (summed in fp32)
optimizer    (8, or 12 with an fp32 master copy) P / (d c) (Adam's two means; sharded over data and context parallel ranks)
layer        A = b [4 h / s + (2 (q + 2 kv) + q + 3 f) / t]           (per token; attention keeps no N x N matrix)
activations  recompute: N (b L h / s + A)      else: N L A            (times p micro-batches in flight)
keys         c > 1: 4 c N x 2 kv b / t        (one layer's keys and values of all context ranks, and as much gathered per chunk)
logits       b rows V / t + 4 x 1024 V / t     (rows <= N that predict response tokens; gradient in place; a chunk in fp32)
             train.output_layer chunked: the first part at most 896 MiB, and b rows h + (4, or 6 for bf16) h V / t   (gradients of
             the rows and of the output weight, summed in fp32)
teacher      weights + N A + 4 N x 2 kv b / t + chunk logits + kept b h x (2 batch x M x longest reply) / d
             (forward only: one layer at a time, whose keys and values are gathered for up to 4 N rows where candidates
             share a prefix and no kernel reads them in place; hidden states of reply tokens stay until the step;
             M = loss.max_candidates)
KV cache     2 L kv b / min(t, kv_heads) per token

Checked against megatron-core on one H200 with Qwen3-4B's shape in bf16: A is 112 KB a token, measured 118; training with
recompute is 296 KB a token, measured 262. Fragmentation, NCCL buffers and the CUDA context come on top (about 2 GiB).
"""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_core.config.schema import Config
from openclaw_core.models.architecture import Architecture, padded_vocab

GIB = 2**30
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
CHUNK_ROWS = 1024
CHUNK_BYTES = 896 * 2**20
"""loss/fused_linear.py: logits of a chunk where the output layer is chunked."""
KEYS_PER_TOKEN = 4
"""models/megatron/prefix.py: rows whose keys are gathered, per token of a pack."""
KEYS_OF_RANKS = 4
"""models/megatron/context.py: copies of all ranks' keys: as gathered, up to two chunks' selections, and a gradient."""
SCORED_AHEAD = 2
"""Batches whose scores and hidden states the teacher keeps at most: the one in training, and the next."""
KV_SHARE = 0.85
PROCESS_BYTES = {"cuda": int(2.5 * GIB), "cpu": int(0.6 * GIB)}


@dataclass(frozen=True)
class Part:
    """One use of memory in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Memory:
    """Estimate of one role: parts on each of its devices, and parts on the host for each of its processes.

    kv_tokens is how many tokens fit into an engine's KV cache (None for roles without one, or unknown device memory).
    elastic_bytes of a device's parts are taken only where there is room: a cache beyond one sequence of full length.
    """

    device: tuple[Part, ...]
    host: tuple[Part, ...]
    kv_tokens: int | None = None
    elastic_bytes: int = 0

    @property
    def device_bytes(self) -> int:
        return sum(part.bytes for part in self.device)

    @property
    def least_bytes(self) -> int:
        """What a device must have for the role to run at all."""
        return self.device_bytes - self.elastic_bytes

    @property
    def host_bytes(self) -> int:
        return sum(part.bytes for part in self.host)


@dataclass(frozen=True)
class Split:
    """How a model is cut: tensor, pipeline, data and context parallel sizes."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    sequence: bool = False
    context: int = 1


def shard_parameters(arch: Architecture, split: Split) -> int:
    """P: weights on the fullest rank."""
    q, kv = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    matrices = arch.hidden * (q + 2 * kv) + q * arch.hidden + 3 * arch.hidden * arch.ffn
    biases = (q + 2 * kv) * arch.qkv_bias
    norms = 2 * arch.hidden + 2 * arch.head_dim * arch.qk_norm
    layer = -(-(matrices + biases) // split.tensor) + norms
    embedding = padded_vocab(arch.vocab, tp=split.tensor) // split.tensor * arch.hidden
    copies = 1 if arch.tied or split.pipeline > 1 else 2
    return -(-arch.layers // split.pipeline) * layer + copies * embedding + arch.hidden


def layer_activation(arch: Architecture, split: Split, width: int) -> int:
    """A: bytes that one layer keeps per token while its gradient is still to come."""
    q, kv = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    whole = 4 * arch.hidden / (split.tensor if split.sequence else 1)
    shared = (2 * (q + 2 * kv) + q + 3 * arch.ffn) / split.tensor
    return int(width * (whole + shared))


def actor_memory(arch: Architecture, split: Split, config: Config) -> Memory:
    """The trained student: one optimizer step at the largest micro-batch."""
    train, width = config.train, BYTES[config.train.dtype]
    weights = shard_parameters(arch, split)
    per_parameter = 8 if width == 4 else 12
    layers, tokens = -(-arch.layers // split.pipeline), train.max_tokens_per_device
    layer = layer_activation(arch, split, width)
    kept = width * layers * arch.hidden // (split.tensor if split.sequence else 1)
    per_token = kept + layer if train.recompute else layers * layer
    samples = -(-train.batch_size // split.data)
    rows = min(tokens, -(-samples * config.rollout.max_response_tokens // split.context))
    columns = padded_vocab(arch.vocab, tp=split.tensor) // split.tensor
    logits = width * rows * columns
    if train.output_layer == "chunked":
        gradients = width * rows * arch.hidden + (4 if width == 4 else 6) * columns * arch.hidden
        logits = min(logits, CHUNK_BYTES) + gradients
    optimizer = weights * per_parameter // (split.data * split.context)
    device = [
        Part("weights", weights * width),
        Part("gradients", weights * 4),
        Part("optimizer", optimizer),
        Part("activations", tokens * per_token * split.pipeline),
        Part("logits", logits + 4 * min(rows, CHUNK_ROWS) * columns),
    ]
    if split.context > 1:
        keys = KEYS_OF_RANKS * split.context * tokens * 2 * arch.kv_heads * arch.head_dim * width // split.tensor
        device.append(Part("keys of context ranks", keys))
    if config.loss.kl_coef > 0:
        device.insert(1, Part("reference", weights * width))
    host = (
        _process(config),
        Part("checkpoint staging", weights * width + optimizer),
        Part("weight export", arch.parameters * width // (split.tensor * split.pipeline)),
    )
    return Memory(tuple(device), host)


def teacher_memory(arch: Architecture, split: Split, config: Config) -> Memory:
    """The frozen teacher: one forward pass, logits in chunks, hidden states of response rows kept until the step."""
    width, tokens = BYTES[config.train.dtype], max(config.train.max_tokens_per_device, config.rollout.context_length)
    weights = shard_parameters(arch, split) * width
    columns = padded_vocab(arch.vocab, tp=split.tensor) // split.tensor
    kept = (
        SCORED_AHEAD
        * config.train.batch_size
        * config.loss.max_candidates
        * config.rollout.max_response_tokens
        * arch.hidden
        * width
    )
    device = (
        Part("weights", weights),
        Part("activations", tokens * layer_activation(arch, split, width)),
        Part("keys of shared prefixes", KEYS_PER_TOKEN * tokens * 2 * arch.kv_heads * arch.head_dim * width // split.tensor),
        Part("logits", (width + 4) * min(tokens, CHUNK_ROWS) * columns),
        Part("kept hidden states", kept // split.data),
    )
    return Memory(device, (_process(config), Part("loading", weights)))


def engine_memory(arch: Architecture, devices: int, config: Config, width: int) -> Memory:
    """One device of an inference engine: its weights, and the KV cache that the rest of the memory holds.

    Where the device's memory isn't known, the cache of one sequence of full length stands for it.
    """
    weights = shard_parameters(arch, Split(tensor=devices)) * width
    token = kv_token_bytes(arch, devices, width)
    cache = least = token * config.rollout.context_length
    kv_tokens = None
    if config.partition.device == "cuda" and config.partition.device_memory_gib is not None:
        room = int(config.partition.device_memory_gib * GIB * KV_SHARE) - weights
        cache, kv_tokens = max(room, cache), max(room // token, 0)
    elif config.partition.device == "cpu":
        cache *= config.users.concurrency if config.users else 1
    device = (Part("weights", weights), Part("KV cache", cache))
    return Memory(device, (_process(config), Part("loading", weights)), kv_tokens, cache - least)


def kv_token_bytes(arch: Architecture, devices: int, width: int) -> int:
    """Keys and values of one token on one device of an engine; heads are copied where devices outnumber them."""
    heads = max(arch.kv_heads // devices, 1)
    return 2 * arch.layers * heads * arch.head_dim * width


def _process(config: Config) -> Part:
    return Part("process", PROCESS_BYTES[config.partition.device])
