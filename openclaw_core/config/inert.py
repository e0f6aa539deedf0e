"""Keys that somebody set and that nothing will read in this mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ..loss.divergence import DIVERGENCES
from .keys import all_keys
from .schema import Config

Finding = tuple[str, str]


@dataclass(frozen=True)
class Rule:
    """Keys, or whole sections where a name ends with a dot, that have no effect for a reason."""

    reason: str
    keys: tuple[str, ...]


def active_rules(config: Config) -> list[Rule]:
    """The rules that hold under a configuration."""
    loss, judge, partition = config.loss, config.judge, config.partition
    rules: list[Rule] = []
    if loss.w_opd == 0:
        names = ("subset", "selection", "divergence", "k", "max_candidates", "diff_clip", "opd_on_rl_only", "tail")
        rules.append(
            Rule("loss.w_opd is 0: no OPD term", (*(f"loss.{name}" for name in names), "teacher.", "partition.teacher."))
        )
    elif not DIVERGENCES.get(loss.divergence).surrogate:
        # The GRPO term has its own ratio and clip.
        unread = ("diff_clip",) if loss.w_rl > 0 else ("diff_clip", "eps_clip", "eps_clip_high", "dual_clip")
        why = f"loss.divergence is {loss.divergence}, which has no ratio and no clip"
        rules.append(Rule(why, tuple(f"loss.{name}" for name in unread)))
    if judge.kind != "scripted":
        rules.append(Rule(f"judge.kind is {judge.kind}", ("judge.useless_hints", "judge.only_useless", "judge.unparsable")))
    elif judge.only_useless:
        rules.append(Rule("judge.only_useless is true", ("judge.useless_hints",)))
    if judge.kind != "openai":
        rules.append(Rule(f"judge.kind is {judge.kind}", ("judge.base_url", "judge.api_key_env")))
    if judge.kind != "engine":
        rules.append(Rule(f"judge.kind is {judge.kind}", ("judge.engine_flags",)))
    if config.rollout.engine == "embedded":
        rules.append(Rule("rollout.engine is embedded", ("rollout.engine_flags",)))
        if judge.kind != "engine":
            rules.append(Rule("no role runs SGLang", ("rollout.engine_python",)))
    if judge.kind == "scripted":
        rules.append(Rule("judge.kind is scripted", ("judge.model", "judge.temperature", "judge.max_tokens")))
    if judge.kind == "openai" or (judge.kind == "scripted" and partition.device == "cuda"):
        rules.append(Rule(f"judge.kind is {judge.kind}: it holds no devices", ("partition.judge.",)))
    if partition.device == "cpu":
        rules.append(Rule("partition.device is cpu", ("partition.device_memory_gib",)))
    for role in ("actor", "teacher"):
        if getattr(partition, role).tensor_parallel == 1:
            rules.append(Rule(f"partition.{role}.tensor_parallel is 1", (f"partition.{role}.sequence_parallel",)))
    return rules


def inert_keys(config: Config, origins: Mapping[str, str]) -> list[Finding]:
    """One finding per reason, naming the keys that were set to something else than their default, and by whom.

    A value given by flag or environment counts even where it equals the default: somebody just asked for it.
    """
    values, found, told = _flat(config), [], set()
    for rule in active_rules(config):
        hit = [
            key for key in values if _matches(key, rule.keys) and key not in told and _asked(key, values[key], origins.get(key))
        ]
        told.update(hit)
        if hit:
            names = ", ".join(_named(hit, rule.keys, origins))
            found.append(
                (f"{names} {'has' if len(hit) == 1 else 'have'} no effect because {rule.reason}.", "Remove the setting.")
            )
    return found


def _named(hit: list[str], patterns: tuple[str, ...], origins: Mapping[str, str]) -> list[str]:
    """Keys with their origins; of a whole section only its name."""
    shown: dict[str, str] = {}
    for key in hit:
        section = next((pattern for pattern in patterns if pattern.endswith(".") and key.startswith(pattern)), None)
        shown.setdefault(section.rstrip(".") if section else key, origins[key])
    return [f"{name} ({origin})" for name, origin in shown.items()]


def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return any(key.startswith(pattern) if pattern.endswith(".") else key == pattern for pattern in patterns)


def _asked(key: str, value: object, origin: str | None) -> bool:
    if origin is None or origin == "default":
        return False
    if origin == "--set" or origin.startswith("environment "):
        return not (key.endswith(".devices") and value == 0)
    return value != _defaults().get(key) and not (key.endswith(".devices") and value == 0)


@cache
def _defaults() -> dict[str, object]:
    return {path: key.field.get_default(call_default_factory=True) for path, key in all_keys().items() if key.section is None}


def _flat(config: Config) -> dict[str, object]:
    flat: dict[str, object] = {}

    def visit(values: Mapping[str, object], prefix: str) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                visit(value, f"{prefix}{name}.")
            else:
                flat[f"{prefix}{name}"] = value

    visit(config.model_dump(), "")
    return flat
