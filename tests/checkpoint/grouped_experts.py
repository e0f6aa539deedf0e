"""megatron's own TEGroupedMLP without Transformer Engine: its classes, loaded over a GroupedLinear made of plain matrices."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch


class GroupedLinear(torch.nn.Module):
    """What TEGroupedLinear expects of Transformer Engine's: weight0 .. weightN, applied to consecutive rows."""

    def __init__(self, num_gemms: int, in_features: int, out_features: int, *, params_dtype: torch.dtype, **rest: Any) -> None:
        super().__init__()
        self.use_bias = False
        self.num_gemms, self.fp8, self.fp8_calibration, self.fp8_meta = num_gemms, False, False, {"fp8_checkpoint": False}
        for number in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(out_features, in_features, dtype=params_dtype))
            self.register_parameter(f"weight{number}", weight)

    def forward(self, rows: torch.Tensor, splits: list[int], **rest: Any) -> torch.Tensor:
        parts = zip(rows.split(splits), self.parameters(), strict=True)
        return torch.cat([part @ weight.t() for part, weight in parts])

    def init_fp8_metadata(self, num_gemms: int) -> None:
        """There is none."""

    def get_extra_state(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """There is none."""


class _StandIn(ModuleType):
    __path__ = ()
    __version__ = "2.9.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].islower():
            return importlib.import_module(f"{self.__name__}.{name}")
        return type(name, (torch.nn.Module,), {})


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "transformer_engine" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _StandIn(spec.name)
        if spec.name == "transformer_engine.pytorch":
            module.GroupedLinear = GroupedLinear
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def load() -> Any:
    """A specification of megatron's TEGroupedMLP with its own grouped linear layers. megatron must have been imported
    before, without Transformer Engine: from here on it would find the stand-in."""
    from megatron.core import utils
    from megatron.core.extensions import transformer_engine as original
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.moe.experts import TEGroupedMLP
    from megatron.core.transformer.spec_utils import ModuleSpec as Spec
    from packaging.version import Version

    sys.meta_path.insert(0, _Finder())
    utils._te_version = Version("2.9.0")
    spec = importlib.util.spec_from_file_location("grouped_extension", original.__file__)
    extension = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    linear = MLPSubmodules(linear_fc1=extension.TEColumnParallelGroupedLinear, linear_fc2=extension.TERowParallelGroupedLinear)
    return Spec(module=TEGroupedMLP, submodules=linear)
