"""Draw lines and bars as SVG for a self-contained page. Owns positions and colours."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence

COLOURS = ("#1f6fb2", "#d2691e", "#2e8b57", "#8b3a8b", "#b22222", "#708090", "#c9a227", "#17a2a2")
STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;"
    "color:#222}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.2em .6em;text-align:right;border-bottom:1px solid #ddd}"
    "tr.knee{background:#eaf4ea}"
    "pre{background:#f4f4f4;padding:.8em;white-space:pre-wrap}"
    "text{font:12px system-ui,sans-serif;fill:#333}"
)
WIDTH = 640
_LEFT, _RIGHT, _BOTTOM, _TOP, _LEGEND = 64, 20, 40, 10, 16

Points = Sequence[tuple[float, float]]


def page(title: str, parts: Sequence[str], style: str = "") -> str:
    """Return a self-contained HTML page."""
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    )
    return f"{head}<style>{STYLE}{style}</style><body>{''.join(parts)}</body></html>\n"


def lines(
    named: Mapping[str, Points],
    ticks: Mapping[float, str],
    label: str,
    *,
    dots: bool = False,
    height: int = 260,
) -> str:
    """Draw a line for each name from 0 upwards; `ticks` label places of the axis."""
    xs = [x for points in named.values() for x, _ in points] + list(ticks)
    least, most = min(xs), max(xs)
    highest = _round_up(max((y for points in named.values() for _, y in points), default=0.0))
    floor = height - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - least) / (most - least) if most > least else 0.5
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * across, floor - (floor - _TOP) * y / highest

    drawn = []
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = floor - (floor - _TOP) * part
        drawn.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        drawn.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_short(highest * part)}</text>"
        )
    for at, words in ticks.items():
        drawn.append(
            f'<text x="{place(at, 0)[0]:.0f}" y="{floor + 18}" text-anchor="middle">{words}</text>'
        )
    middle = (_LEFT + WIDTH) / 2
    drawn.append(
        f'<text x="{middle}" y="{height - 4}" text-anchor="middle">{html.escape(label)}</text>'
    )
    for number, (name, points) in enumerate(named.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(*point) for point in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if dots:
            drawn += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places
            ]
        y = height + _LEGEND * (1 + number // 3) - 4
        drawn.append(
            f'<text x="{10 + 212 * (number % 3)}" y="{y}" style="fill:{colour}">'
            f"{html.escape(name)}</text>"
        )
    return _svg(drawn, height + _LEGEND * -(-len(named) // 3))


def bar(parts: Mapping[str, float], shown: Callable[[float], str]) -> str:
    """Draw one bar of parts, with a legend below it."""
    total = sum(parts.values()) or 1.0
    drawn, x = [], 0.0
    for number, (name, value) in enumerate(parts.items()):
        width = WIDTH * value / total
        drawn.append(
            f'<rect x="{x:.1f}" y="4" width="{width:.1f}" height="30" fill="{COLOURS[number]}"/>'
        )
        drawn.append(
            f'<text x="{210 * number}" y="56" style="fill:{COLOURS[number]}">'
            f"{name} {shown(value)}</text>"
        )
        x += width
    return _svg(drawn, 64)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 4, 6, 8 times a power of ten: its quarters have few digits."""
    if value <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    return next(digit * scale for digit in (1, 2, 4, 6, 8, 10) if digit * scale >= value)


def _short(value: float) -> str:
    """Return the value in three digits and a unit, for example 1.2k."""
    for letter, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _svg(parts: Sequence[str], height: int) -> str:
    size = f'width="{WIDTH}" height="{height}"'
    return f'<svg viewBox="0 0 {WIDTH} {height}" {size}>{"".join(parts)}</svg>'
