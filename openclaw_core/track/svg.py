"""Line charts as SVG text, without a plotting library. Colours follow the reader's light or dark scheme."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 44, 48
COLOURS = ("#2f6fdb", "#c2571a", "#2a8a57", "#8a4fc0", "#b8862b", "#c23a5e")
Place = tuple[float, float]
STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}.faint{fill:#6e7781}.grid{stroke:#d8dee4}.back{fill:#ffffff}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.faint{fill:#9198a1}.grid{stroke:#30363d}.back{fill:#0d1117}}"""


@dataclass(frozen=True, slots=True)
class Series:
    """A named line through (x, y) points; points with a number that isn't finite are left out."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def line_chart(series: Sequence[Series], *, title: str, x_label: str, y_label: str, level: float | None = None) -> str:
    """An SVG document of series with y between 0 and 1 and x from 0; level draws a dashed horizontal line.

    A chart without points says that there are no readings.
    """
    clean = [[(x, y) for x, y in one.points if math.isfinite(x) and math.isfinite(y)] for one in series]
    x_end = max([1.0, *(x for points in clean for x, _ in points)])

    def at(x: float, y: float) -> Place:
        return round(LEFT + x / x_end * (WIDTH - LEFT - RIGHT), 1), round(HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM), 1)

    parts = [*_frame(title, x_label, y_label), *_grid(at, x_end)]
    if level is not None:
        (x1, y1), (x2, _) = at(0, level), at(x_end, level)
        parts.append(f'<path class="grid" d="M{x1} {y1}H{x2}" stroke-width="1.5" stroke-dasharray="6 4"/>')
        parts.append(f'<text class="faint" x="{x2 + 8}" y="{y1 + 4}">target {level:.0%}</text>')
    for number, (one, points) in enumerate(zip(series, clean, strict=True)):
        parts += _line(one, [at(x, y) for x, y in points], points, COLOURS[number % len(COLOURS)], number)
    if not any(clean):
        parts.append(
            f'<text class="faint" x="{(WIDTH - RIGHT + LEFT) / 2}" y="{HEIGHT / 2}" text-anchor="middle">no readings</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _frame(title: str, x_label: str, y_label: str) -> list[str]:
    middle = (WIDTH - RIGHT + LEFT) / 2
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        f'<text x="{LEFT}" y="26" font-weight="600">{escape(title)}</text>',
        f'<text class="faint" x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text class="faint" transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]


def _grid(at: Callable[[float, float], Place], x_end: float) -> list[str]:
    parts = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        (x1, y), (x2, _) = at(0, value), at(x_end, value)
        parts.append(f'<path class="grid" d="M{x1} {y}H{x2}"/>')
        parts.append(f'<text class="faint" x="{x1 - 8}" y="{y + 4}" text-anchor="end">{value:.0%}</text>')
    for value in _ticks(x_end):
        x, y = at(value, 0)
        parts.append(f'<path class="grid" d="M{x} {y}v4"/>')
        parts.append(f'<text class="faint" x="{x}" y="{y + 18}" text-anchor="middle">{value:g}</text>')
    return parts


def _ticks(end: float) -> list[float]:
    """0 and round steps up to end, at most 11."""
    size = 10 ** math.floor(math.log10(end))
    size = next(size * factor for factor in (0.1, 0.2, 0.5, 1, 2) if end / (size * factor) <= 10)
    return [size * number for number in range(int(end / size) + 1)]


def _line(one: Series, places: list[Place], points: list[Place], colour: str, number: int) -> list[str]:
    dash = ' stroke-dasharray="5 4"' if one.dashed else ""
    key_y = TOP + 10 + 20 * number
    key_x = WIDTH - RIGHT + 14
    parts = [
        f'<path d="M{key_x} {key_y}h18" stroke="{colour}" stroke-width="2.5"{dash}/>',
        f'<text x="{key_x + 24}" y="{key_y + 4}">{escape(one.name)}</text>',
    ]
    if places:
        path = "L".join(f"{x} {y}" for x, y in places)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"{dash}/>')
    parts += [
        f'<circle cx="{px}" cy="{py}" r="3.5" fill="{colour}"><title>{escape(one.name)}: {y:.3g} at {x:g}</title></circle>'
        for (px, py), (x, y) in zip(places, points, strict=True)
    ]
    return parts
