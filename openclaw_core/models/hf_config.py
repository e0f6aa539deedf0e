"""Fields of a Hugging Face config.json, each read with a finding for what is missing, contradictory or unsupported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openclaw_core.errors import UserError

Problems = list[tuple[str, str]]
TIED = "tie_word_embeddings"
RELEASE = "Take the config of the model's release."


def read_config(folder: str | Path) -> dict[str, Any]:
    """config.json of a Hugging Face folder as it stands."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} has no config.json.", "Point at a Hugging Face model folder.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read as JSON: {error}.", "Fetch the model again.") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} doesn't hold a JSON object.", "Fetch the model again.")
    return config


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the language model: text_config where it is nested, with the outer dtype where the
    inner part doesn't say, and the outer tie_word_embeddings wherever there is one.

    transformers ties by the outer flag alone. It saves a text_config made without one with its class's default, which for
    Qwen3-VL-MoE is true where the outer class's is false.
    """
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return config
    dtypes = {key: config[key] for key in ("torch_dtype", "dtype") if key in config}
    return {**dtypes, **inner, **{key: config[key] for key in (TIED,) if key in config}}


def tied_twice(config: dict[str, Any]) -> str | None:
    """What to say where a nested config's two flags for a tied head differ: readers other than transformers take the inner."""
    inner = config.get("text_config")
    if not isinstance(inner, dict) or inner.get(TIED, config.get(TIED)) == config.get(TIED, inner.get(TIED)):
        return None
    outside, inside = json.dumps(config[TIED]), json.dumps(inner[TIED])
    return f"{TIED} is {outside} outside and {inside} in text_config; the outer one counts and is written in both."


def rope_places(config: dict[str, Any]) -> dict[str, float]:
    """Every place of a config that states the rope base, with its value."""
    text = text_config(config)
    places: dict[str, Any] = {"rope_theta": text.get("rope_theta")}
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(text.get(key), dict):
            places[f"{key}.rope_theta"] = text[key].get("rope_theta")
    return {place: float(value) for place, value in places.items() if isinstance(value, int | float)}


def integer(text: dict[str, Any], key: str, problems: Problems, most: int = 10**9) -> int:
    """The positive integer under key; 0 and a problem where it isn't one, or is more than any model has."""
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        problems.append((f"{key}={value!r} isn't a positive integer.", RELEASE))
        return 0
    if value > most:
        problems.append((f"{key}={value} is more than {most}.", RELEASE))
        return 0
    return value


def number(text: dict[str, Any], key: str, problems: Problems) -> float:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        problems.append((f"{key}={value!r} isn't a positive number.", RELEASE))
        return 0.0
    return float(value)


def flag(text: dict[str, Any], key: str, default: bool, problems: Problems) -> bool:
    value = text.get(key, default)
    if not isinstance(value, bool):
        problems.append((f"{key}={value!r} isn't true or false.", RELEASE))
        return default
    return value


def listed(text: dict[str, Any], key: str, kind: type, problems: Problems) -> list[Any]:
    """The list under key, all of kind (int or str); empty where it is null or left out, and, with a problem, no such list."""
    value = text.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        problems.append((f"{key}={value!r} isn't a list of {'integers' if kind is int else 'texts'}.", RELEASE))
        return []
    return value


def rope(text: dict[str, Any], problems: Problems) -> tuple[float, dict[str, Any] | None]:
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
    if places and not 0 < base < float("inf"):
        problems.append((f"The rope base {base} isn't a positive number.", RELEASE))
    stated = {key: text[key] for key in ("rope_parameters", "rope_scaling") if text.get(key) is not None}
    broken = ", ".join(f"{key}={value!r}" for key, value in stated.items() if not isinstance(value, dict))
    if broken:
        problems.append((f"{broken} isn't an object.", RELEASE))
        return base, None
    blocks = list(stated.values())
    if any(
        "rope_type" not in block and "type" not in block and any(isinstance(v, dict) for v in block.values()) for block in blocks
    ):
        problems.append(("rope_parameters holds one set per layer type.", "Models whose layers differ in rope aren't supported."))
        return base, None
    each = [_scaling(block) for block in blocks]
    if len(each) == 2 and each[0] != each[1]:
        texts = f"rope_parameters says {each[0]}, rope_scaling {each[1]}"
        problems.append((f"The rope scaling differs: {texts}.", "Keep the one the model was trained with."))
    scaling = each[0] if each else {}
    if not isinstance(scaling.get("rope_type", ""), str):
        problems.append((f"rope_type={scaling['rope_type']!r} is no text.", RELEASE))
        return base, None
    if scaling.get("rope_type", "default") == "default":
        return base, None
    try:
        json.dumps(scaling, allow_nan=False)
    except ValueError:
        problems.append((f"The rope scaling {scaling} isn't finite.", RELEASE))
    return base, scaling


def _scaling(block: dict[str, Any]) -> dict[str, Any]:
    """What a block says apart from the base, its kind under one name."""
    rest = {key: value for key, value in block.items() if key not in ("rope_theta", "type", "rope_type") and value is not None}
    return {**rest, "rope_type": block.get("rope_type") or block.get("type") or "default"}


def refuse_unsupported(text: dict[str, Any], family: str, problems: Problems) -> None:
    other = {*listed(text, "layer_types", str, problems)} - {"full_attention"}
    if other:
        problems.append((f"layer_types holds {', '.join(sorted(other))}.", "Use a model with full attention in every layer."))
    if text.get("use_sliding_window"):
        problems.append(("use_sliding_window=true: attention windows aren't supported.", "Use a model with full attention."))
    for key in ("attention_bias", "mlp_bias"):
        if text.get(key) and not (family in ("qwen2", "qwen2_moe") and key == "attention_bias"):
            problems.append((f"{key}=true: {family} models with these biases aren't supported.", "Use a release without them."))
    activation = text.get("hidden_act", "silu")
    if activation != "silu":
        problems.append((f"hidden_act={activation!r}, but {family} models use silu.", "Check the config."))
    quantised = text.get("quantization_config") or {}
    facts = quantised if isinstance(quantised, dict) else {}
    if quantised and not (facts.get("quant_method") == "fp8" and facts.get("weight_block_size")):
        method = facts.get("quant_method", "?")
        problems.append((f"The weights are quantised ({method}).", "Use the bf16 release, or one in FP8 blocks."))
    for place in (text, text.get("rope_parameters")):
        partial = place.get("partial_rotary_factor", 1.0) if isinstance(place, dict) else None
        if partial not in (None, 1, 1.0):
            what = f"partial_rotary_factor={partial}: rope on a part of the head isn't supported."
            problems.append((what, "Use another model."))
