"""The page of inspect-candidates in a real browser, opened from disk."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_core.dumps.schema import HintDump
from openclaw_core.dumps.writer import DumpWriter
from tests.e2e import product
from tests.e2e.browser import Browser, browser

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
make_step = runpy.run_path(str(Path(__file__).parents[1] / "dumps" / "example.py"))["step"]
RIGHT, LEFT, TAB, ENTER = "\ue014", "\ue012", "\ue004", "\ue007"
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\"><b>"
CURRENT = "[...document.querySelectorAll('{} button')].findIndex(node => node.getAttribute('aria-current') === 'true')"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of three samples whose names are as long as real ones, one with a hint that is out for mischief."""
    folder = tmp_path_factory.mktemp("dumps")
    dump = make_step(1, length=60)
    samples = [replace(sample, sample_id=letter * 32) for letter, sample in zip("abc", dump.samples, strict=True)]
    first = samples[0]
    samples[0] = replace(first, hints=(HintDump(HOSTILE, 2, "user", HOSTILE), *first.hints[1:]))
    DumpWriter(folder).write(replace(dump, samples=tuple(samples)))
    made = folder / "page.html"
    product.run("inspect-candidates", str(folder), "--step", "1", "--html", str(made))
    return made


@pytest.fixture(scope="module")
def window(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture
def opened(window: Browser, page: Path) -> Browser:
    window.size(1280, 900)
    window.open(page.as_uri())
    return window


def shown(window: Browser) -> tuple[str, int]:
    """First letter of the sample that is shown, and the position."""
    title, at = window.run(f"return [document.querySelector('h2').textContent, {CURRENT.format('#reply')}]")
    assert window.run("return document.querySelector('#detail h3').textContent").startswith(f"Position {at}:")
    return title.removeprefix("Sample ")[0], at


def test_it_loads_nothing_and_runs_nothing_of_the_data(opened: Browser) -> None:
    assert opened.run("return document.title") == "Step 1: candidates"
    assert "onerror" in opened.run("return document.getElementById('main').textContent")
    assert opened.run("return document.querySelectorAll('img').length") == 0
    assert opened.run("return performance.getEntriesByType('resource').length") == 0
    assert opened.console() == []


def test_keys_and_clicks(opened: Browser) -> None:
    assert shown(opened) == ("a", 0)
    for key, expected in (
        (RIGHT, ("a", 1)),
        (RIGHT, ("a", 2)),
        (LEFT, ("a", 1)),
        ("j", ("b", 0)),
        ("j", ("c", 0)),
        ("k", ("b", 0)),
    ):
        opened.press(key)
        assert shown(opened) == expected
    signals = opened.run("return JSON.parse(document.getElementById('data').textContent).samples[1].positions.map(p => p.signal)")
    for strongest in sorted(range(len(signals)), key=lambda t: -signals[t])[:3]:
        opened.press("n")
        assert shown(opened) == ("b", strongest)
    opened.click("#samples button:nth-child(3)")
    assert shown(opened) == ("c", 0)
    opened.click("#reply button:nth-child(6)")
    assert shown(opened) == ("c", 5)
    assert opened.console() == []


def test_the_keyboard_alone_is_enough(opened: Browser) -> None:
    focus = "return (document.activeElement.closest('#samples, #reply') || {}).id || document.activeElement.tagName"
    opened.press(TAB)
    assert opened.run(focus) == "samples"
    opened.press("j")
    opened.press(ENTER)
    assert shown(opened) == ("b", 0)
    assert opened.run("return document.activeElement.title") == "b" * 32, "the focus goes along"
    for _ in range(6):
        opened.press(TAB)
        if opened.run(focus) == "reply":
            break
    opened.press(RIGHT)
    assert shown(opened) == ("b", 1)
    assert opened.run(f"return document.activeElement === document.querySelectorAll('#reply button')[{CURRENT.format('#reply')}]")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_wide_and_narrow_in_light_and_dark(opened: Browser, width: int, scheme: str) -> None:
    opened.size(width, 900)
    opened.scheme(scheme)
    beyond = """return [...document.querySelectorAll('nav, nav *, h2, p, .reply, .reply *, summary')]
        .filter(node => node.getBoundingClientRect().right > innerWidth + 1).length"""
    assert opened.run(beyond) == 0
    assert opened.run("return document.documentElement.scrollWidth <= innerWidth")
    assert opened.run("const nav = document.querySelector('nav'); return nav.scrollWidth <= nav.clientWidth")
    light = """const seen = key => getComputedStyle(document.body)[key].match(/[\\d.]+/g).slice(0, 3)
        .map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        const of = key => seen(key).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        return [of('color'), of('backgroundColor')]"""
    ink, paper = opened.run(light)
    assert (ink > paper) == (scheme == "dark")
    assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 7
