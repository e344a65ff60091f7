"""Draws rows of `bench_peers.py` into one picture: each loader's rate to the DataLoader's of the same round.

    python jobs/plot_peers.py rows.jsonl docs/peers.svg

Bars are medians, whiskers the middle half, on a scale of powers of two; the last row of each case counts.
"""

from __future__ import annotations

import argparse
import html
import json
import math
from pathlib import Path
from typing import Any

LEFT, WIDTH, BAR, GAP = 190, 560, 16, 34
LOW, HIGH = 1 / 4, 32
OURS, OTHERS, GRID = "#1f6feb", "#8c959f", "#d0d7de"


def _x(ratio: float) -> float:
    """Where a ratio lies, in pixels."""
    share = math.log2(min(max(ratio, LOW), HIGH) / LOW) / math.log2(HIGH / LOW)
    return LEFT + share * WIDTH


def _text(x: float, y: float, words: str, **style: str) -> str:
    styled = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.0f}" y="{y:.0f}"{styled}>{html.escape(words)}</text>'


def draw(rows: list[dict[str, Any]]) -> str:
    """The picture, as SVG."""
    parts, y = [], 24.0
    for row in rows:
        begin = y
        parts.append(_text(4, y, row["case"], font_weight="bold"))
        y += 12
        for name, of in row["contestants"].items():
            ratio = of["ratio"]
            color = OURS if name.startswith("rayingest") else OTHERS
            width = max(1.0, _x(ratio["median"]) - LEFT)
            middle = y + BAR / 2
            parts += [
                _text(LEFT - 6, y + 12, name, text_anchor="end"),
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 4}" fill="{color}"/>',
                f'<path d="M{_x(ratio["q1"]):.1f} {middle - 2}H{_x(ratio["q3"]):.1f}" stroke="#000"/>',
                _text(_x(max(ratio["median"], ratio["q3"])) + 6, y + 11, f"{ratio['median']:.2f}"),
            ]
            y += BAR
        ticks = [2.0**power for power in range(-2, 6)]
        grid = "".join(f"M{_x(tick):.1f} {begin + 8}V{y}" for tick in ticks)
        parts.insert(0, f'<path d="{grid}" stroke="{GRID}" fill="none"/>')
        parts += [_text(_x(tick), y + 12, f"{tick:g}", text_anchor="middle", fill="#57606a") for tick in ticks]
        y += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 60} {y:.0f}"'
    return f'{head} font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>' + (
        "\n".join(parts) + "</svg>\n"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    last = {row["case"]: row for row in map(json.loads, options.rows.read_text().splitlines())}
    options.picture.write_text(draw(list(last.values())))


if __name__ == "__main__":
    main()
