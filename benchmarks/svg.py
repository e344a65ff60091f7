"""Draw parts of SVG pictures: text, lines, a logarithmic scale, the page."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass

OURS, OTHERS, GRID, WORDS = "#1f6feb", "#8c959f", "#d0d7de", "#57606a"


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to pixels from `begin` to `end`, logarithmically."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value; a value outside is at the edge."""
        share = math.log(min(max(value, self.low), self.high) / self.low) / math.log(
            self.high / self.low
        )
        return self.begin + share * (self.end - self.begin)


def text(x: float, y: float, words: str, **style: str) -> str:
    """Return text that starts or ends at a point, as `text_anchor` says."""
    styled = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.0f}" y="{y:.0f}"{styled}>{html.escape(words)}</text>'


def lines(path: str, color: str, width: float = 1) -> str:
    """Return lines along a path."""
    return f'<path d="{path}" stroke="{color}" stroke-width="{width:g}" fill="none"/>'


def page(width: float, height: float, parts: Iterable[str]) -> str:
    """Return the picture on white."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
    paper = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join(
        [f'{head} font-family="sans-serif" font-size="12">', paper, *parts, "</svg>", ""]
    )
