"""Draw the figures of `simulate.py`: the costs of one rank, for small and for large samples.

    python -m benchmarks.simulate --sample-bytes 2000 --row-bytes 8192 --json simulation.jsonl
    python -m benchmarks.simulate --json simulation.jsonl
    python -m benchmarks.plot_simulation simulation.jsonl docs/simulation.svg

A panel for each figure and a line for each size of samples, over the number of ranks, without
stragglers. Both axes are logarithmic. The last row of each world size counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import read_rows
from benchmarks.svg import GRID, OTHERS, OURS, WORDS, Scale, lines, page, text

PANELS = {
    "planner and dispatch, ms of CPU a step": (
        0.1,
        10,
        lambda row: row["planner_ms"] + row["dispatch_ms"],
    ),
    "reads of a block, all ranks": (1, 1000, lambda row: row["reads_per_block"]),
    "peak of a rank's ledger, MiB": (10, 10_000, lambda row: row["peak_mib"]),
    "the loop waits, % (at least 0.1)": (0.1, 100, lambda row: 100 * row["waiting"]),
}
COLORS = (OURS, OTHERS)
COLUMN, ROW, LEFT, TOP, WIDTH, HEIGHT = 330, 210, 50, 34, 250, 130


def draw(rows: list[dict[str, Any]]) -> str:
    """Return the picture as SVG."""
    last = {(row["sample_bytes"], row["world_size"]): row for row in rows if not row["stragglers"]}
    sizes, ranks = (
        sorted({size for size, _ in last}),
        sorted({world_size for _, world_size in last}),
    )
    parts = []
    for number, (title, (low, high, of)) in enumerate(PANELS.items()):
        x, y = number % 2 * COLUMN + LEFT, number // 2 * ROW + TOP
        across, up = (
            Scale(ranks[0], max(ranks[-1], 2), x, x + WIDTH),
            Scale(low, high, y + HEIGHT, y),
        )
        parts += [text(x, y - 10, title, font_weight="bold"), *_axes(across, up, ranks)]
        for size, color in zip(sizes, COLORS, strict=False):
            points = [
                (across.at(world_size), up.at(of(last[size, world_size]))) for world_size in ranks
            ]
            parts.append(lines("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points), color, 2))
            parts += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in points
            ]
    below = (len(PANELS) + 1) // 2 * ROW + TOP
    for number, (size, color) in enumerate(zip(sizes, COLORS, strict=False)):
        parts.append(
            text(LEFT + number * 160, below - 12, f"● {size / 1000:g} kB a sample", fill=color)
        )
    return page(2 * COLUMN, below, parts)


def _axes(across: Scale, up: Scale, ranks: list[int]) -> list[str]:
    ticks, tick = [], up.low
    while tick <= up.high * 1.001:
        ticks.append(tick)
        tick *= 10
    parts = [
        lines("".join(f"M{across.begin} {up.at(tick):.1f}H{across.end}" for tick in ticks), GRID)
    ]
    parts += [
        text(across.begin - 6, up.at(tick) + 4, f"{tick:,g}", text_anchor="end", fill=WORDS)
        for tick in ticks
    ]
    names = [
        text(across.at(some), up.begin + 16, f"{some:,}", text_anchor="middle", fill=WORDS)
        for some in ranks
    ]
    return [
        *parts,
        *names,
        text(across.end + 4, up.begin + 30, "ranks", text_anchor="end", fill=WORDS),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args(argv)
    options.picture.write_text(draw(read_rows(options.rows)))


if __name__ == "__main__":
    main()
