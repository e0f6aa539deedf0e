"""Weights of a HF folder: everything is read and checked before the first parameter of the running model changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

# What shapes alone don't show: with another of these the same tensors are another model.
_SAME = (
    "model_type",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "hidden_act",
    "tie_word_embeddings",
)


class BadWeightsError(Exception):
    """A folder that doesn't hold exactly the parameters of the running model; one sentence with the names."""


def check_names(folder: Path, module: Any) -> dict[str, Path]:
    """The file of every parameter. BadWeightsError when names or shapes differ from the model's."""
    held = _scan(folder)
    expected = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    missing = sorted(expected.keys() - held.keys())
    surplus = sorted(held.keys() - expected.keys() - _tied_names(module))
    if missing or surplus:
        raise BadWeightsError(f"{folder} doesn't fit the model: missing {_few(missing)}; not in the model {_few(surplus)}.")
    wrong = [
        f"{name} is {list(held[name][1])} instead of {list(shape)}" for name, shape in expected.items() if held[name][1] != shape
    ]
    if wrong:
        raise BadWeightsError(f"{folder} doesn't fit the model: {_few(wrong)}.")
    return {name: file for name, (file, _) in held.items()}


def stage(folder: Path, module: Any) -> dict[str, torch.Tensor]:
    """All parameters of folder in host memory, checked for names, shapes, architecture and finite values."""
    _check_config(folder, module.config)
    files = check_names(folder, module)
    staged: dict[str, torch.Tensor] = {}
    for file in sorted(set(files.values())):
        try:
            with safe_open(file, framework="pt", device="cpu") as opened:
                staged.update({name: opened.get_tensor(name) for name, place in files.items() if place == file})
        except (SafetensorError, OSError) as error:
            raise BadWeightsError(f"{file} can't be read: {error}.") from error
    for name, tensor in staged.items():
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise BadWeightsError(f"{name} in {folder} holds values that aren't finite numbers.")
    for name in _tied_names(module) & staged.keys():
        source = module.get_input_embeddings().weight
        embedding = next(staged[n] for n, p in module.named_parameters() if p is source)
        if not torch.equal(staged.pop(name), embedding):
            raise BadWeightsError(f"{name} in {folder} differs from the input embedding, and the model ties them.")
    return staged


@torch.no_grad()
def apply(module: torch.nn.Module, staged: dict[str, torch.Tensor]) -> None:
    """Copies staged parameters into the model in place."""
    for name, parameter in module.named_parameters():
        parameter.copy_(staged[name])


def _scan(folder: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """File and shape of every tensor of the folder, from the files' headers."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if not folder.is_dir():
        raise BadWeightsError(f"{folder} is no folder.")
    if single.is_file() == index.is_file():
        state = "both" if single.is_file() else "neither"
        raise BadWeightsError(f"{folder} must hold either {single.name} or {index.name}; it holds {state}.")
    if single.is_file():
        return {name: (single, shape) for name, shape in _header(single).items()}
    try:
        place: dict[str, str] = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise BadWeightsError(f"{index} can't be read: {error}.") from error
    if odd := sorted(file for file in set(place.values()) if Path(file).name != file):
        raise BadWeightsError(f"{index} points outside its folder: {_few(odd)}.")
    headers = {file: _header(folder / file) for file in set(place.values())}
    if lost := sorted(name for name, file in place.items() if name not in headers[file]):
        raise BadWeightsError(f"{index} lists tensors that their files lack: {_few(lost)}.")
    return {name: (folder / file, headers[file][name]) for name, file in place.items()}


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise BadWeightsError(f"{file} can't be read: {error}.") from error


def _check_config(folder: Path, running: Any) -> None:
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise BadWeightsError(f"{folder} has no config.json.")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise BadWeightsError(f"{folder / 'config.json'} can't be read: {error}.") from error
    pairs = [(key, getattr(config, key, None), getattr(running, key, None)) for key in _SAME]
    pairs.append(("rope_parameters", _rope(config), _rope(running)))
    if differ := [f"{key} is {new} instead of {old}" for key, new, old in pairs if new != old]:
        raise BadWeightsError(f"{folder} is another architecture: {'; '.join(differ)}.")


def _rope(config: Any) -> Any:
    return getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None)


def _tied_names(module: Any) -> set[str]:
    return {"lm_head.weight"} if module.config.tie_word_embeddings else set()


def _few(names: list[str], limit: int = 5) -> str:
    if not names:
        return "nothing"
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
