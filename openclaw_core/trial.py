"""A fast way of computing is tried on a small problem, with what is installed here, before it stands in for a plain one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

# Largest share of an error in the norm of a result: far above rounding, far below a wrong element.
ERRORS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
Results = Callable[[], Mapping[str, Tensor]]


def agrees(fast: Results, plain: Results, dtype: torch.dtype, otherwise: str) -> bool:
    """Whether fast() runs here and has the results of plain(), computed in dtype; where not, otherwise is warned of with why.

    Floats agree within ERRORS, everything else where it is equal. Raises what tells nothing of fast: want of memory, and
    a device that has failed.
    """
    found = _disagreement(fast, plain, ERRORS[dtype])
    if found is not None:
        warnings.warn(f"{otherwise}: {found}.", stacklevel=3)
    return found is None


def _disagreement(fast: Results, plain: Results, most: float) -> str | None:
    try:
        found = fast()
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:
        # Whatever stops a compiler or a launch here, the plain way goes on.
        return f"{type(error).__name__}: {error}".splitlines()[0]
    for name, expected in plain().items():
        gap, norm = float((found[name].double() - expected.double()).norm()), float(expected.double().norm())
        # NaN is no agreement.
        if not gap <= (most if expected.is_floating_point() else 0) * norm:
            return f"{name} differ by {gap / norm:.1e} of their norm" if norm else f"{name} aren't 0"
    return None
