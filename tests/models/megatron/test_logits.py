"""Scores of rows on one rank; ranks that share the vocabulary are covered by the teacher's tests."""

from __future__ import annotations

import pytest
import torch

from openclaw_core.models.megatron import logits as module
from openclaw_core.models.megatron.logits import logprobs_at, score_rows
from openclaw_core.vocab import VocabShard


class Table:
    """A model whose logits are its rows."""

    def __init__(self, size: int, real: int) -> None:
        self.columns = VocabShard.whole(real, size)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


@pytest.mark.parametrize("chunk", [1, 1 << 27])
@pytest.mark.parametrize("vocab", [50, 40])
def test_scores_equal_a_dense_log_softmax(monkeypatch, chunk, vocab):
    monkeypatch.setattr(module, "_CHUNK_VALUES", chunk)
    rows = torch.randn(7, 64) * 4
    ids = torch.randint(0, vocab, (7, 3))
    scores = score_rows(Table(64, 50), rows, k=5, temperature=0.6, vocab=vocab, ids=ids)
    dense = (rows[:, :vocab] / 0.6).log_softmax(-1)
    values, order = dense.topk(5)
    assert torch.equal(scores.top_ids, order)
    torch.testing.assert_close(scores.top_logprobs, values)
    torch.testing.assert_close(scores.at_ids, dense.gather(1, ids))
    torch.testing.assert_close(scores.lse, torch.logsumexp(rows[:, :vocab] / 0.6, -1))
    torch.testing.assert_close(logprobs_at(Table(64, 50), rows, ids, temperature=0.6, vocab=vocab), dense.gather(1, ids))


def test_ties_go_to_the_lower_id_and_zeros_have_no_sign():
    rows = torch.tensor([[1.0, 3.0, 3.0, -0.0, 0.0, 3.0], [-1.0, -1.0, -2.0, -1.0, -5.0, -1.0]])
    scores = score_rows(Table(6, 6), rows, k=5, temperature=1.0, vocab=6)
    assert scores.top_ids.tolist() == [[1, 2, 5, 0, 3], [0, 1, 3, 5, 2]]


def test_k_is_cut_to_the_vocabulary():
    assert score_rows(Table(6, 4), torch.randn(2, 6), k=9, temperature=1.0, vocab=4).top_ids.shape == (2, 4)


def test_no_rows():
    scores = score_rows(Table(6, 6), torch.zeros(0, 6), k=2, temperature=1.0, vocab=6)
    assert scores.top_ids.shape == (0, 2)
