"""Draw rows of `throughput.py`: each loader's rate relative to the DataLoader's of the same round.

    python -m benchmarks.plot_throughput rows.jsonl docs/peers.svg

Bars are medians and whiskers quartiles, on a scale of powers of two. The last row of each case
counts; rows of turns that were too short are named and left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import read_rows
from benchmarks.svg import GRID, OTHERS, OURS, WORDS, Scale, lines, page, text

LEFT, WIDTH, BAR, GAP = 190, 560, 16, 34
SCALE = Scale(1 / 32, 32, LEFT, LEFT + WIDTH)
TICKS = [2.0**power for power in range(-5, 6)]


def draw(rows: list[dict[str, Any]]) -> str:
    """Return the picture as SVG."""
    parts, y = [], 24.0
    for row in rows:
        begin = y
        parts.append(text(4, y, row["case"], font_weight="bold"))
        y += 12
        for name, of in row["contestants"].items():
            parts += _bar(name, of["ratio"], y)
            y += BAR
        parts.insert(
            0, lines("".join(f"M{SCALE.at(tick):.1f} {begin + 8}V{y}" for tick in TICKS), GRID)
        )
        ticks = [f"{tick:g}" if tick >= 1 else f"1/{1 / tick:g}" for tick in TICKS]
        places = map(SCALE.at, TICKS)
        parts += [
            text(x, y + 12, tick, text_anchor="middle", fill=WORDS)
            for x, tick in zip(places, ticks, strict=True)
        ]
        y += GAP
    return page(LEFT + WIDTH + 60, y, parts)


def _bar(name: str, ratio: dict[str, float], y: float) -> list[str]:
    """Draw a bar from 1 to either side."""
    median, one = SCALE.at(ratio["median"]), SCALE.at(1)
    color = OURS if name.startswith("rayingest") else OTHERS
    width = max(1.0, abs(median - one))
    return [
        text(LEFT - 6, y + 12, name, text_anchor="end"),
        f'<rect x="{min(median, one):.1f}" y="{y}" width="{width:.1f}" '
        f'height="{BAR - 4}" fill="{color}"/>',
        lines(
            f"M{SCALE.at(ratio['q1']):.1f} {y + BAR / 2 - 2}H{SCALE.at(ratio['q3']):.1f}", "#000"
        ),
        text(max(median, one, SCALE.at(ratio["q3"])) + 6, y + 11, f"{ratio['median']:.2f}"),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args(argv)
    rows = read_rows(options.rows)
    last = {row["case"]: row for row in rows if not row.get("short")}
    for row in rows:
        if row.get("short"):
            print(f"left out: {row['case']} of {row['time']}, whose turns were too short")
    if not last:
        parser.error(f"{options.rows} has only rows of turns that were too short")
    options.picture.write_text(draw(list(last.values())))


if __name__ == "__main__":
    main()
