"""What a probe found, as one HTML page that needs nothing else, and as YAML to paste into a configuration.

Owns words and pictures; measures nothing.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import yaml

from rayingest.observe.probe import Measured, Split, knee

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 260, 64, 40
_COLOURS = ("#1f6fb2", "#d2691e", "#2e8b57", "#8b3a8b", "#b22222", "#708090")
_HEADS = "workers|prefetch|pinned|batch|samples/s|data ms|copy ms|step ms|CPUs|memory MiB|/dev/shm MiB|bottleneck"
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .6em;text-align:right;"
    "border-bottom:1px solid #ddd}tr.knee{background:#eaf4ea}pre{background:#f4f4f4;padding:.8em;white-space:pre-wrap}"
    "text{font:12px system-ui,sans-serif;fill:#333}"
)


def recommendation(measured: Sequence[Measured]) -> str:
    """The section `loader` of a configuration, as YAML: the least setting that gives nearly the best rate."""
    best = knee(measured)
    options: dict[str, Any] = {"workers": best.point.workers, "prefetch": best.point.prefetch}
    if best.point.pin_memory is not None:
        options["pin_memory"] = best.point.pin_memory
    section: dict[str, Any] = {"loader": options}
    if best.point.batch is not None:
        section = {"batch": {"size": best.point.batch}, **section}
    why = f"# {best.samples_per_second:,.0f} samples/s; {best.diagnosis}\n"
    return why + yaml.safe_dump(section, sort_keys=False)


def page(title: str, measured: Sequence[Measured], parts: Split | None, step_ms: float) -> str:
    """The whole report."""
    best = knee(measured)
    told = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>Steps of {step_ms:g} ms stand for a model. The knee, the least that gives nearly the best rate: "
        f"<b>{best.point.workers} worker(s)</b>, {best.samples_per_second:,.0f} samples/s. "
        f"{html.escape(str(best.diagnosis))}.</p>",
        "<h2>Samples per second</h2>",
        _curves(measured),
        "<h2>What a batch costs at the knee</h2>" + _bars(parts) if parts is not None else "",
        "<h2>All points</h2>",
        _table(measured, best),
        "<h2>To paste</h2>",
        f"<pre>{html.escape(recommendation(measured))}</pre>",
    ]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    return f"{head}<style>{_STYLE}</style><body>{''.join(told)}</body></html>\n"


def _table(measured: Sequence[Measured], best: Measured) -> str:
    heads = _HEADS.split("|")
    rows = ["<tr>" + "".join(f"<th>{name}</th>" for name in heads) + "</tr>"]
    for one in measured:
        point = one.point
        cells = [
            f"{point.workers}",
            f"{point.prefetch}",
            "default" if point.pin_memory is None else str(point.pin_memory).lower(),
            "own" if point.batch is None else f"{point.batch}",
            f"{one.samples_per_second:,.0f}",
            *(f"{1e3 * seconds:.1f}" for seconds in (one.data_seconds, one.copy_seconds, one.step_seconds)),
            f"{one.cpu:.1f}",
            *(f"{nbytes / 2**20:,.0f}" for nbytes in (one.memory_bytes, one.shared_bytes)),
            one.diagnosis.bottleneck,
        ]
        mark = ' class="knee"' if one is best else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(rows)}</table>"


def _curves(measured: Sequence[Measured]) -> str:
    """Rates over workers, a line for each of the other settings."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for one in measured:
        point = one.point
        name = f"prefetch {point.prefetch}"
        name += "" if point.pin_memory is None else ", pinned" if point.pin_memory else ", not pinned"
        name += "" if point.batch is None else f", batch {point.batch}"
        lines.setdefault(name, []).append((point.workers, one.samples_per_second))
    most_x = max(point.workers for point in (one.point for one in measured))
    most_y = 1.1 * max(one.samples_per_second for one in measured) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + (_WIDTH - _LEFT - 20) * x / most_x, _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - 10) * y / most_y

    parts = [_axes(most_y)]
    for workers in sorted({one.point.workers for one in measured}):
        x, y = place(workers, 0)
        parts.append(f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle">{workers}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">workers</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [place(*point) for point in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places]
        parts.append(f'<text x="{_LEFT + 12}" y="{22 + 16 * number}" style="fill:{colour}">{html.escape(name)}</text>')
    return _svg(parts, _HEIGHT)


def _axes(most: float) -> str:
    lines = []
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - 10) * part
        lines.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - 20}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * part:,.0f}</text>')
    return "".join(lines)


def _bars(parts: Split) -> str:
    """One bar, a piece for each part."""
    times = asdict(parts)
    total = sum(times.values()) or 1.0
    drawn, x = [], 0.0
    for number, (name, seconds) in enumerate(times.items()):
        width = _WIDTH * seconds / total
        drawn.append(f'<rect x="{x:.1f}" y="4" width="{width:.1f}" height="30" fill="{_COLOURS[number]}"/>')
        label = f"{name} {1e3 * seconds:.1f} ms"
        drawn.append(f'<text x="{210 * number}" y="56" style="fill:{_COLOURS[number]}">{label}</text>')
        x += width
    return _svg(drawn, 64)


def _svg(parts: Sequence[str], height: int) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">{"".join(parts)}</svg>'
