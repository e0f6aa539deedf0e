from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openclaw_core.dumps.inspect import show_sample
from openclaw_core.dumps.position import Positions, choose_positions
from openclaw_core.dumps.pull import _of_term, pulls
from openclaw_core.dumps.reader import DumpReader
from openclaw_core.dumps.summary import absent, no_signal, signal, summarise
from openclaw_core.dumps.tokens import TokenTexts
from openclaw_core.dumps.writer import DumpWriter, checked_tensors
from openclaw_core.loss.divergence import DIVERGENCES

make_step = runpy.run_path(str(Path(__file__).with_name("example.py")))["step"]
OF_THE_SURROGATE = ("weights", "differences", "advantages")


def of(divergence, **options):
    """Header and first sample of a step under a divergence without advantages, as a reader would give them."""
    dump = make_step(**options)
    kept = {name: value for name, value in checked_tensors(dump.samples[0]).items() if name not in OF_THE_SURROGATE}
    return replace(dump.header, divergence=divergence, diff_clip=0.0), replace(dump.samples[0], tensors=kept)


@pytest.mark.parametrize("subset", ["student", "overlap"])
def test_the_pull_of_jensen_shannon_is_minus_its_slope(subset):
    header, sample = of("jensen_shannon", subset=subset)
    live = sample.tensors["support_mask"] > 0
    p, q = (np.exp(sample.tensors[name].astype(np.float64)) for name in ("support_student", "support_teacher"))
    expected = np.where(live, p * np.log((p + q) / 2 / p) / 2, 0.0)
    found = pulls(header, sample)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert ((found > 0) == (live & (q > p))).all()
    np.testing.assert_allclose(signal(header, sample), np.abs(expected).sum(1), rtol=1e-6)


def test_under_the_surrogate_the_pull_is_the_advantage():
    dump = make_step(subset="overlap", c=1e9)
    sample = replace(dump.samples[0], tensors=checked_tensors(dump.samples[0]))
    assert pulls(dump.header, sample) is sample.tensors["advantages"]
    old, told, mask = (sample.tensors[name] for name in ("support_student", "support_teacher", "support_mask"))
    found = _of_term(DIVERGENCES.get("reverse_kl"), dump.header, old, told, mask > 0)
    np.testing.assert_allclose(found, np.where(mask > 0, sample.tensors["advantages"], 0), rtol=1e-4, atol=1e-6)


def test_positions_and_summary_have_numbers_without_advantages(tmp_path):
    header, sample = of("jensen_shannon")
    pull = signal(header, sample)
    assert list(pull[choose_positions(header, sample, sort="signal")]) == sorted(pull, reverse=True)
    one = Positions(header, sample, TokenTexts(None)).at(3)
    assert one.signal == pytest.approx(sum(abs(entry.pull) for entry in one.support)) == pytest.approx(pull[3])
    assert [entry.advantage for entry in one.support] == [None] * 4
    summary = summarise(header, sample)
    assert summary.signal == pytest.approx(pull.mean())
    assert all(quarter.signal is not None for quarter in summary.quarters)
    assert no_signal(header, sample) is None
    assert "w, d and A (divergence jensen_shannon: see the pull)" in absent(header, sample)
    DumpWriter(tmp_path).write(replace(make_step(), header=header, samples=(sample,)))
    view = show_sample(DumpReader(tmp_path), 1, "1a", TokenTexts(None), sort="signal", limit=1)
    assert view.positions[0].signal == pytest.approx(pull.max())


def test_an_entry_that_the_teacher_never_says_pulls_away():
    header, sample = of("jensen_shannon")
    told = sample.tensors["support_teacher"].copy()
    told[0, 0] = -np.inf
    p = np.exp(np.float64(sample.tensors["support_student"][0, 0]))
    found = pulls(header, replace(sample, tensors={**sample.tensors, "support_teacher": told}))
    assert found[0, 0] == pytest.approx(-p * np.log(2) / 2)
    assert np.isfinite(found).all()


def test_a_divergence_that_is_not_known_here_has_no_pull():
    header, sample = of("earth_mover")
    assert pulls(header, sample) is None
    assert no_signal(header, sample) == "its dump holds no advantages, and none can be found for divergence earth_mover"
    assert "w, d and A (divergence earth_mover)" in absent(header, sample)
    assert Positions(header, sample, TokenTexts(None)).at(0).support[0].pull is None
    header, sample = of("jensen_shannon")
    bare = replace(sample, tensors={k: v for k, v in sample.tensors.items() if k != "support_teacher"})
    assert pulls(header, bare) is None
