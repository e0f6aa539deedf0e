"""How strongly the OPD term pulls at each entry of a support, and which way, whatever divergence the term is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import UsageError
from .schema import SampleDump, StepHeader

if TYPE_CHECKING:
    from ..loss.divergence import Divergence


def pulls(header: StepHeader, sample: SampleDump) -> np.ndarray | None:
    """[R, S]: -d OPD_t / d ell_cur(v) at cur = old, above 0 where the student shall say v more often.

    Under the clipped surrogate these are the advantages. Those of another divergence are found by its own term from what the
    dump holds of the support; None where it lacks that, or the divergence isn't known here.
    """
    advantages = sample.get("advantages")
    if advantages is not None:
        return advantages
    old, told, mask = (sample.get(name) for name in ("support_student", "support_teacher", "support_mask"))
    divergence = _known(header.divergence)
    if old is None or told is None or mask is None or divergence is None or divergence.surrogate:
        return None
    return _of_term(divergence, header, old, told, mask > 0)


def _known(name: str) -> Divergence | None:
    from ..loss.divergence import DIVERGENCES

    try:
        return DIVERGENCES.get(name)
    except UsageError:
        return None


def _of_term(divergence: Divergence, header: StepHeader, old: np.ndarray, told: np.ndarray, live: np.ndarray) -> np.ndarray:
    import torch

    from ..config.schema import Loss
    from ..loss.targets import OpdTargets
    from ..loss.tensors import masked_softmax

    ell_old, ell_teacher = (torch.as_tensor(np.where(live, part, 0.0), dtype=torch.float64) for part in (old, told))
    mask, rows = torch.as_tensor(live), torch.zeros(len(old), dtype=torch.int64)
    weights, differences = masked_softmax(ell_old, mask), ell_teacher - ell_old
    opd = OpdTargets(
        ids=torch.where(mask, 0, -1),
        mask=mask,
        weights=weights,
        differences=differences,
        advantages=weights * differences,
        old_logprobs=ell_old,
        teacher_logprobs=ell_teacher,
        k_star=rows,
        overlap=rows[:, None],
        tied=None,
    )
    current = ell_old.clone().requires_grad_()
    cfg = Loss.model_validate({"divergence": header.divergence})
    divergence.term(current, opd, mask, cfg).loss.sum().backward()
    assert current.grad is not None
    return np.asarray(-current.grad.numpy())
