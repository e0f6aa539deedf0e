"""The families that can be converted, what was verified of each, and those that are refused with the reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from openclaw_core.checkpoint.families import CARRIED, RULES
from openclaw_core.checkpoint.families.verified import VERIFIED
from openclaw_core.models.architecture import FAMILIES, REFUSED
from openclaw_core.models.buildable import trained


@dataclass(frozen=True)
class Support:
    """One model type: how many rules of which kinds map it, and what the tests have shown (see families/verified.py).

    logits: the tensor-parallel size at which the tests ran --verify=logits on it; trained: the trainer builds it; carried:
    tensors copied beside the text tower.
    """

    model_type: str
    models: str
    rules: int
    kinds: dict[str, int]
    loaded: tuple[str, ...]
    saved: tuple[str, ...]
    logits: str
    trained: bool
    carried: tuple[str, ...]


def supported() -> list[Support]:
    """Every model type, from its rules and the tests' registry."""
    found = []
    for model_type, verified in VERIFIED.items():
        family = FAMILIES[model_type]
        kinds = Counter(rule.kind.title for rule in RULES[family])
        found.append(
            Support(
                model_type,
                verified.models,
                len(RULES[family]),
                dict(kinds),
                verified.loaded,
                verified.saved,
                verified.compared,
                trained(model_type),
                CARRIED.get(model_type, ()),
            )
        )
    return found


def refused() -> dict[str, str]:
    """Model type -> why it isn't converted."""
    return dict(REFUSED)
