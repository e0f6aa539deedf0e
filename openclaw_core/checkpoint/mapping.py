"""One engine for both directions: declared rules become units, and a unit ties a box of megatron's to slices of HF's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch

from openclaw_core.checkpoint.kinds import Kind, Replicated, Shape
from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import Architecture

AS_IT_IS: Kind = Replicated()
LAYER, EXPERT = "{layer}.", "{expert}."
SKIPPED = ("optimizer.", "chained_", "rng_state", "rerun_state_machine_state", "opt_param_scheduler")


@dataclass(frozen=True)
class Rule:
    """Hugging Face tensors (pattern -> symbolic shape) that make up one megatron tensor.

    {layer} runs over layers (all of them when None), {expert} over experts; a Hugging Face name without {expert} in a rule
    that has it holds them all, on its first axis. Symbols of shapes are listed in symbols().
    aliases are other names under which megatron stores the same tensor.
    """

    megatron: str
    hf: dict[str, tuple[str, ...]]
    kind: Kind = AS_IT_IS
    when: Callable[[Architecture], bool] = lambda arch: True
    aliases: tuple[str, ...] = ()
    layers: Callable[[Architecture], Sequence[int]] | None = None


@dataclass(frozen=True)
class Layout:
    """How a torch_dist checkpoint arranges the same tensors.

    stacked: layers lie on axis 0 of one tensor, rather than in a tensor each; stacked_experts: the same of experts, on the
    axis after; split_gated: gate and up are two tensors; padded: rows of the embedding; names: stored name patterns that
    replace the rules' own.
    """

    padded: int
    stacked: bool = True
    stacked_experts: bool = True
    split_gated: bool = False
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Slice:
    """Rows [start, stop) of a Hugging Face tensor, or all of it."""

    name: str
    rows: tuple[int, int] | None = None


def cast(values: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """values in dtype; UserError where a finite one becomes infinite, which no comparison in that dtype would see."""
    made = values.to(dtype)
    if dtype == torch.float16 and values.dtype != dtype and bool((made.isinf() & values.isfinite()).any()):
        most = values[values.isfinite()].abs().max()
        raise UserError(f"{name} holds {most:g}, more than float16 can.", "Use --dtype bf16 or fp32.")
    return made


@dataclass(frozen=True)
class Unit:
    """The step of a conversion: the box (offsets, sizes) of a stored tensor, and the slices it is made of.

    lead counts the leading axes of length 1 that stacking adds.
    """

    stored: str
    offsets: Shape
    sizes: Shape
    slices: tuple[Slice, ...]
    kind: Kind
    arch: Architecture = field(repr=False)
    lead: int = 0

    def pack(self, parts: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """The box made of the slices; zeros where there are none."""
        if not parts:
            return torch.zeros(self.sizes, dtype=dtype)
        return cast(self.kind.pack(parts, self.arch), dtype, self.stored).reshape(self.sizes)

    def unpack(self, box: torch.Tensor) -> list[torch.Tensor]:
        """The slices of the box, in the order of slices."""
        if not self.slices:
            return []
        return self.kind.unpack(box.reshape(box.shape[self.lead :]), self.arch)


@dataclass(frozen=True)
class Mapping:
    """Every tensor on both sides, with its shape, and the units that tie them.

    sources names the stored tensor of each Hugging Face tensor.
    """

    architecture: Architecture
    units: tuple[Unit, ...]
    hf: dict[str, Shape]
    stored: dict[str, Shape]
    sources: dict[str, str]


def build_mapping(rules: Iterable[Rule], arch: Architecture, layout: Layout, itemsize: int = 2) -> Mapping:
    """All units of an architecture for one layout, from the rules alone: no checkpoint is looked at.

    itemsize (bytes per weight) only bounds the pieces of the embedding.
    """
    units: list[Unit] = []
    hf: dict[str, Shape] = {}
    stored: dict[str, Shape] = {}
    sources: dict[str, str] = {}
    for rule in rules:
        if not rule.when(arch):
            continue
        shapes = [_resolve_shape(shape, arch) for shape in rule.hf.values()]
        fused = EXPERT in rule.megatron and not any(EXPERT in name for name in rule.hf)
        each = [shape[1:] for shape in shapes] if fused else shapes
        total, *rest = rule.kind.stored_shape(each, layout.padded)
        pieces = list(rule.kind.pieces(each, itemsize, layout.padded, layout.split_gated))
        patterns = [_renamed(name, arch) for name in rule.hf]
        for place in _stacks(rule, arch, layout):
            names = [name.format(**place.numbers) for name in patterns]
            hf.update(zip(names, shapes, strict=True))
            sources.update(dict.fromkeys(names, place.name))
            for piece in pieces:
                fqn = place.name + piece.suffix
                stored[fqn] = (*place.shape, piece.rows if piece.suffix else total, *rest)
                offsets, sizes = (*place.index, piece.start, *(0 for _ in rest)), (*(1 for _ in place.index), piece.rows, *rest)
                mine = (place.numbers["expert"], place.numbers["expert"] + 1) if fused else None
                slices = tuple(Slice(names[index], mine or span) for index, span in piece.sources)
                units.append(Unit(fqn, offsets, sizes, slices, rule.kind, arch, len(place.index)))
    return Mapping(arch, tuple(units), hf, stored, sources)


@dataclass(frozen=True)
class _Stack:
    """Where the tensor of one layer (and expert) is stored: name, and its index in the axes that stacking adds."""

    name: str
    index: Shape
    shape: Shape
    numbers: dict[str, int]


def _stacks(rule: Rule, arch: Architecture, layout: Layout) -> Iterator[_Stack]:
    pattern = _stored_pattern(rule, layout)
    axes = []
    if LAYER in pattern:
        axes.append(("layer", rule.layers(arch) if rule.layers else range(arch.layers), arch.layers, layout.stacked))
    if EXPERT in pattern:
        axes.append(("expert", range(arch.experts), arch.experts, layout.stacked_experts))
    for key, _, _, stacked in axes:
        pattern = pattern.replace(f"{{{key}}}.", "") if stacked else pattern
    shape = tuple(size for _, _, size, stacked in axes if stacked)
    for numbers in itertools.product(*(span for _, span, _, _ in axes)):
        named = {key: number for (key, *_), number in zip(axes, numbers, strict=True)}
        index = tuple(number for (*_, stacked), number in zip(axes, numbers, strict=True) if stacked)
        yield _Stack(pattern.format(**named), index, shape, named)


def _renamed(pattern: str, arch: Architecture) -> str:
    """The rules' name with the prefix under which this model's text tower lies."""
    return arch.prefix + pattern.removeprefix("model.") if pattern.startswith("model.") else pattern


def symbols(arch: Architecture) -> dict[str, int]:
    """Sizes by the symbols that rules use: h hidden, q and kv rows of the projections, d head size, f the MLP's width, v
    vocabulary; e experts, m an expert's width and 2m twice that, s the shared experts'; of latent attention ql and kl the
    ranks, qh, kh and oh the rows of the up and output projections, kr the rank with rope; 1 is one row.
    """
    mla = arch.mla
    latent = {}
    if mla is not None:
        latent = {
            "ql": mla.q_rank,
            "kl": mla.kv_rank,
            "kr": mla.kv_rank + mla.rope_dim,
            "qh": arch.heads * (mla.nope_dim + mla.rope_dim),
            "kh": arch.heads * (mla.nope_dim + mla.v_dim),
            "oh": arch.heads * mla.v_dim,
        }
    return {
        "h": arch.hidden,
        "q": arch.heads * arch.head_dim,
        "kv": arch.kv_heads * arch.head_dim,
        "d": arch.head_dim,
        "f": arch.ffn,
        "v": arch.vocab,
        "e": arch.experts,
        "m": arch.moe_ffn,
        "2m": 2 * arch.moe_ffn,
        "s": arch.shared_ffn,
        "1": 1,
        **latent,
    }


def _resolve_shape(shape: tuple[str, ...], arch: Architecture) -> Shape:
    values = symbols(arch)
    return tuple(values[symbol] for symbol in shape)


def _stored_pattern(rule: Rule, layout: Layout) -> str:
    for pattern in (rule.megatron, *rule.aliases):
        if pattern.replace(LAYER, "").replace(EXPERT, "") in layout.names:
            return pattern
    return rule.megatron


def sniff_layout(stored: dict[str, Shape]) -> Layout:
    """The layout of a torch_dist checkpoint, from its tensors' names and shapes.

    Raises UserError when there is no embedding, which every language model of megatron's has.
    """
    embedding = stored.get("embedding.word_embeddings.weight")
    if embedding is None:
        raise UserError(
            "The checkpoint holds no embedding.word_embeddings.weight.",
            "It must hold a whole language model of megatron-core's GPTModel.",
        )
    stacked = not any(re.match(r"decoder\.layers\.\d+\.", name) for name in stored)
    apart = any(re.search(r"\.experts\.\d+\.", name) for name in stored)
    names = frozenset(
        re.sub(r"\.experts\.\d+\.", ".experts.", re.sub(r"^decoder\.layers\.\d+\.", "decoder.layers.", name)) for name in stored
    )
    split = frozenset(name.removesuffix("_w") for name in names if name.endswith("linear_fc1.weight_w"))
    return Layout(embedding[0], stacked, not apart, bool(split), names | split)


def model_tensors(stored: Iterable[str]) -> Iterator[str]:
    """Names of the model's own tensors: optimizer and random state are left out by name."""
    return (name for name in stored if not name.startswith(SKIPPED))


def check_names(title: str, expected: dict[str, Shape], present: dict[str, Shape], allow: Iterable[str] = ()) -> list[str]:
    """Every expected tensor must be present in its shape, and nothing else unless an allow pattern (glob) covers it.

    Returns the allowed extra names; raises Findings that lists every missing, unknown and misshapen tensor.
    """
    patterns = tuple(allow)
    extra = [name for name in present if name not in expected]
    allowed = [name for name in extra if any(fnmatchcase(name, pattern) for pattern in patterns)]
    unknown = sorted(set(extra) - set(allowed))
    missing = [name for name in expected if name not in present]
    findings = [(f"missing: {text}.", "Take weights and config from one release.") for text in _summed(missing)]
    findings += [(f"unknown: {text}.", "No rule maps it; --allow GLOB leaves it out.") for text in _summed(unknown)]
    findings += [
        (f"{name} is {list(present[name])}, the architecture says {list(shape)}.", "Take weights and config from one release.")
        for name, shape in expected.items()
        if name in present and present[name] != shape
    ][:20]
    if findings:
        counts = f"{len(missing)} missing, {len(unknown)} unknown, {len(expected) - len(missing)} matched by name"
        raise Findings(f"{title}: tensors don't match the architecture ({counts}).", findings)
    return allowed


def _summed(names: list[str], most: int = 40) -> list[str]:
    """Names with layer numbers folded into one line each: 'model.layers.{0..27}.mlp.up_proj.weight (28)'."""
    groups: dict[str, list[int]] = {}
    for name in names:
        number = re.search(r"\.(\d+)\.", name)
        key = name if number is None else f"{name[: number.start(1)]}{{}}{name[number.end(1) :]}"
        groups.setdefault(key, []).append(-1 if number is None else int(number.group(1)))
    lines = [_folded(key, layers) for key, layers in groups.items()]
    return lines if len(lines) <= most else [*lines[:most], f"... and {len(lines) - most} more"]


def _folded(key: str, layers: list[int]) -> str:
    if len(layers) == 1:
        return key.replace("{}", str(layers[0]))
    span = ",".join(map(str, layers)) if len(layers) < 4 else f"{min(layers)}..{max(layers)}"
    return f"{key.replace('{}', span)} ({len(layers)} layers)"
