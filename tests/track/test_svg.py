from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from openclaw_core.track.svg import Series, _ticks, line_chart


def places(svg):
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)]


def test_points_lie_where_their_numbers_say():
    svg = line_chart(
        [Series("a<b", [(0, 0.0), (10, 0.5), (20, 1.0), (15, float("nan"))])], title="t & u", x_label="x", y_label="y", level=0.8
    )
    ElementTree.fromstring(svg)
    (x0, y0), (x1, y1), (x2, y2) = places(svg)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 > y1 > y2
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert "a&lt;b" in svg
    assert "target 80%" in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_an_empty_chart_says_so():
    svg = line_chart([Series("a", [])], title="", x_label="", y_label="")
    ElementTree.fromstring(svg)
    assert "no readings" in svg


@pytest.mark.parametrize("end", [1, 3, 7, 10, 40, 99, 100, 101, 2500, 123456])
def test_ticks_are_few_and_round(end):
    ticks = _ticks(end)
    assert 2 <= len(ticks) <= 11
    assert ticks[0] == 0
    assert ticks[-1] <= end
