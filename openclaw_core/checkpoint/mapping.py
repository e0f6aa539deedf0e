"""One engine for both directions: declared rules become units, and a unit ties a box of megatron's to slices of HF's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch

from openclaw_core.checkpoint.kinds import Kind, Piece, Replicated
from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import Architecture

Shape = tuple[int, ...]
AS_IT_IS: Kind = Replicated()
LAYER = "{layer}."
SKIPPED = ("optimizer.", "chained_", "rng_state", "rerun_state_machine_state", "opt_param_scheduler")


@dataclass(frozen=True)
class Rule:
    """Hugging Face tensors (pattern -> symbolic shape) that make up one megatron tensor.

    {layer} runs over the layers. Symbols of shapes: h hidden, q and kv rows of the projections, d head size, f the
    MLP's width, v vocabulary. aliases are other names under which megatron stores the same tensor.
    """

    megatron: str
    hf: dict[str, tuple[str, ...]]
    kind: Kind = AS_IT_IS
    when: Callable[[Architecture], bool] = lambda arch: True
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """How a torch_dist checkpoint arranges the same tensors.

    stacked: layers lie on axis 0 of one tensor, rather than in a tensor each; split_gated: gate and up are two tensors;
    padded: rows of the embedding; names: stored name patterns that replace the rules' own.
    """

    padded: int
    stacked: bool = True
    split_gated: bool = False
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Slice:
    """Rows [start, stop) of a Hugging Face tensor, or all of it."""

    name: str
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class Unit:
    """The step of a conversion: the box (offsets, sizes) of a stored tensor, and the slices it is made of."""

    stored: str
    offsets: Shape
    sizes: Shape
    slices: tuple[Slice, ...]
    kind: Kind
    arch: Architecture = field(repr=False)
    stacked: bool = False

    def pack(self, parts: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """The box made of the slices; zeros where there are none."""
        if not parts:
            return torch.zeros(self.sizes, dtype=dtype)
        return self.kind.pack(parts, self.arch).to(dtype).reshape(self.sizes)

    def unpack(self, box: torch.Tensor) -> list[torch.Tensor]:
        """The slices of the box, in the order of slices."""
        if not self.slices:
            return []
        return self.kind.unpack(box[0] if self.stacked else box, self.arch)


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
        shapes = [_resolve_shape(symbols, arch) for symbols in rule.hf.values()]
        rows, rest = [shape[0] for shape in shapes], shapes[0][1:]
        total = rule.kind.stored_rows(rows, layout.padded)
        pieces = list(rule.kind.pieces(rows, math.prod(rest) * itemsize, layout.padded, layout.split_gated))
        pattern = _stored_pattern(rule, layout)
        layered = LAYER in rule.megatron
        stacked = layered and layout.stacked
        for layer in range(arch.layers) if layered else (None,):
            names = [name.format(layer=layer) for name in rule.hf]
            hf.update(zip(names, shapes, strict=True))
            sources.update(dict.fromkeys(names, pattern.replace(LAYER, "") if stacked else pattern.format(layer=layer)))
            for piece in pieces:
                fqn = (pattern.replace(LAYER, "") if stacked else pattern.format(layer=layer)) + piece.suffix
                unit = _unit(fqn, piece, names, rest, rule.kind, arch, layer if stacked else None)
                whole = (piece.rows if piece.suffix else total, *rest)
                stored[fqn] = (arch.layers, *whole) if stacked else whole
                units.append(unit)
    return Mapping(arch, tuple(units), hf, stored, sources)


def _unit(fqn: str, piece: Piece, names: list[str], rest: Shape, kind: Kind, arch: Architecture, layer: int | None) -> Unit:
    offsets: Shape = (piece.start, *(0 for _ in rest))
    sizes: Shape = (piece.rows, *rest)
    if layer is not None:
        offsets, sizes = (layer, *offsets), (1, *sizes)
    slices = tuple(Slice(names[index], rows) for index, rows in piece.sources)
    return Unit(fqn, offsets, sizes, slices, kind, arch, stacked=layer is not None)


def _resolve_shape(symbols: tuple[str, ...], arch: Architecture) -> Shape:
    values = {
        "h": arch.hidden,
        "q": arch.heads * arch.head_dim,
        "kv": arch.kv_heads * arch.head_dim,
        "d": arch.head_dim,
        "f": arch.ffn,
        "v": arch.vocab,
    }
    return tuple(values[symbol] for symbol in symbols)


def _stored_pattern(rule: Rule, layout: Layout) -> str:
    for pattern in (rule.megatron, *rule.aliases):
        if pattern.replace(LAYER, "") in layout.names:
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
    names = frozenset(re.sub(r"^decoder\.layers\.\d+\.", "decoder.layers.", name) for name in stored)
    return Layout(embedding[0], stacked, any(name.endswith("linear_fc1.weight_w") for name in stored), names)


def model_tensors(stored: Iterable[str]) -> Iterator[str]:
    """Names of the model's own tensors: optimizer and random state are left out by name."""
    return (name for name in stored if not name.startswith(SKIPPED))


def check_names(
    title: str, expected: dict[str, Shape], present: dict[str, Shape], allow: Iterable[str] = (), remedy: str = ""
) -> list[str]:
    """Every expected tensor must be present in its shape, and nothing else unless an allow pattern (glob) covers it.

    Returns the allowed extra names; raises Findings that lists every missing, unknown and misshapen tensor.
    """
    patterns = tuple(allow)
    extra = [name for name in present if name not in expected]
    allowed = [name for name in extra if any(fnmatchcase(name, pattern) for pattern in patterns)]
    unknown = sorted(set(extra) - set(allowed))
    missing = [name for name in expected if name not in present]
    findings = [(f"missing: {text}", "") for text in _summed(missing)]
    findings += [(f"unknown: {text}", "(not mapped; --allow PATTERN leaves it out)") for text in _summed(unknown)]
    findings += [
        (f"{name} is {list(present[name])}, the architecture says {list(shape)}.", "")
        for name, shape in expected.items()
        if name in present and present[name] != shape
    ][:20]
    if findings:
        counts = f"{len(missing)} missing, {len(unknown)} unknown, {len(expected) - len(missing)} matched by name"
        raise Findings(f"{title}: tensors don't match the architecture ({counts}). {remedy}".rstrip(), findings)
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
