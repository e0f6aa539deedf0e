"""Log-probs of a prompt's own tokens: not scaled by the temperature, as in SGLang."""

from __future__ import annotations

import torch

from openclaw_core.rollout.engines.embedded.model import EngineModel
from openclaw_core.rollout.engines.embedded.request import Request
from openclaw_core.rollout.engines.embedded.sampling import top_pairs, watched_pairs

_ROWS = 1024


def score_prompt(request: Request, hidden: torch.Tensor, model: EngineModel) -> None:
    """Fills the request's input lists from hidden states [>= P, H]. The first wanted token has no log-prob: None."""
    start, ids = request.input_start or 0, request.input_ids
    if start >= len(ids):
        return
    request.input_logprobs.append(None)
    request.input_top.append(None)
    request.input_watched.append(None)
    for low in range(start, len(ids) - 1, _ROWS):
        high = min(low + _ROWS, len(ids) - 1)
        logprobs = torch.log_softmax(model.logits(hidden[low:high]), dim=-1)
        targets = torch.tensor(ids[low + 1 : high + 1], device=model.device)
        request.input_logprobs.extend(logprobs.gather(-1, targets[:, None])[:, 0].tolist())
        if request.top:
            request.input_top.extend(top_pairs(logprobs, [request.top] * (high - low)))
        if request.watched_ids:
            request.input_watched.extend(watched_pairs(row, request.watched_ids) for row in logprobs)
