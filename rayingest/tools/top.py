"""Show every loader of a cluster from the metrics that its nodes export; no Prometheus is needed.

Owns the way back from metrics to figures, and the table. Asks Ray only for its nodes.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rayingest.monitor.diagnose import diagnose, diagnose_ranks
from rayingest.plan.figures.metrics import LOOKED_AT, METRICS, NODES, Snapshot, take_snapshot

_LINE = re.compile(r"^(ray_rayingest_\w+)\{(.*)\} (\S+)")
_TAG = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT_SECONDS = 3.0
_GONE_SECONDS = 30.0
"""A loader without new figures for this long has ended. Ray exports every 10 s."""

_FIGURES = {
    (f"ray_{metric.name}" + ("_total" if metric.kind == "counter" else ""), stage): figure
    for metric in METRICS
    if metric.kind != "durations"
    for figure, stage in metric.stages.items()
}

Key = tuple[str, str, str]
"""Job, rank and number of a loader."""


@dataclass
class Seen:
    """A loader's exported figures, by the names that `stats()` uses."""

    figures: dict[str, Any] = field(default_factory=lambda: {NODES: {}})

    def add(self, figure: str, node: str, value: float) -> None:
        """Add a value: a figure is the sum over nodes, and over processes of the same rank."""
        if figure == LOOKED_AT:
            self.figures[figure] = max(value, self.looked_at)
            return
        of_node = self.figures[NODES].setdefault(node, {})
        for figures in (self.figures, of_node):
            figures[figure] = figures.get(figure, 0.0) + value

    @property
    def batches(self) -> float:
        """How many batches the loop has taken: it falls only if another loader began."""
        return float(self.figures.get("batches", 0.0))

    @property
    def looked_at(self) -> float:
        """When the process read these figures, in seconds since 1970; 0 if it closed the loader."""
        return float(self.figures.get(LOOKED_AT, 0.0))


def parse(text: str) -> dict[Key, Seen]:
    """Return the loaders in what nodes export, in the text format of Prometheus."""
    found: dict[Key, Seen] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        tags = dict(_TAG.findall(match[2]))
        figure = _FIGURES.get((match[1], tags.get("stage", "")))
        if figure is not None:
            key = tags.get("JobId", ""), tags.get("rank", ""), tags.get("loader", "")
            found.setdefault(key, Seen()).add(figure, tags.get("node", ""), float(match[3]))
    return found


def scrape(nodes: Iterable[Mapping[str, Any]]) -> str:
    """Return the metrics that nodes of `ray.nodes()` export now; skip nodes that do not answer."""
    texts = []
    for node in nodes:
        if not node["Alive"] or not node.get("MetricsExportPort"):
            continue
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
                texts.append(answer.read().decode())
        except OSError:
            continue
    return "\n".join(texts)


class Board:
    """What each loader did between its last two looks; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By loader, the last two different looks, each with the time of its arrival.
        self._looks: dict[Key, list[tuple[float, Seen]]] = {}

    def update(self, exported: str) -> dict[Key, Snapshot]:
        """Add the nodes' exports; return every live loader that was seen twice.

        A snapshot covers the time between the loader's last two looks. Their times are those of the
        figures: Ray exports at its own pace.
        """
        now, seen = self._clock(), parse(exported)
        for key, one in seen.items():
            looks = self._looks.get(key, [])
            if looks and one.batches < looks[-1][1].batches:
                looks = []  # another loader, which has the number of one that is closed
            if one.looked_at and (not looks or one.looked_at > looks[-1][1].looked_at):
                self._looks[key] = [*looks[-1:], (now, one)]
        for key, looks in list(self._looks.items()):
            is_closed = key in seen and seen[key].figures.get(LOOKED_AT) == 0
            if is_closed or now - looks[-1][0] > _GONE_SECONDS:
                del self._looks[key]
        return {
            key: _between(*looks) for key, looks in sorted(self._looks.items()) if len(looks) > 1
        }


def _between(before: tuple[float, Seen], after: tuple[float, Seen]) -> Snapshot:
    (_, earlier), (_, later) = before, after
    return take_snapshot(earlier.figures, later.figures, later.looked_at - earlier.looked_at)


_HEADS = (
    "job",
    "rank",
    "loader",
    "samples/s",
    "batches/s",
    "waits",
    "in store",
    "queue",
    "decoders",
    "bottleneck",
)
_WIDTHS = (9, 5, 7, 11, 10, 6, 16, 14, 9, 13)


def table(seen: Mapping[Key, Snapshot]) -> list[str]:
    """Return the table: a line for each loader, then the advice for it over all ranks."""
    if not seen:
        return [
            "no loader runs on this cluster, or none has exported figures twice yet: "
            "Ray exports every 10 s"
        ]
    lines = [_row(_HEADS)]
    for key, one in seen.items():
        queue = (
            f"r{one['reads_running']:.0f} d{one['decodes_running']:.0f} b{one['batches_ready']:.0f}"
        )
        store = f"{one['bytes_in_flight'] / 2**20:.0f}/{one['max_bytes'] / 2**20:.0f} MiB"
        rates = (f"{one[name] / one.seconds:,.1f}" for name in ("samples", "batches"))
        found = diagnose(one)
        cells = (
            *key,
            *rates,
            f"{found.share:.0%}",
            store,
            queue,
            f"{one['decoders']:.0f}",
            found.bottleneck,
        )
        lines.append(_row(cells))
    for of in dict.fromkeys((job, loader) for job, _, loader in seen):
        ranks = {rank: one for (job, rank, loader), one in seen.items() if (job, loader) == of}
        lines.append(f"job {of[0]}, loader {of[1]}: {diagnose_ranks(ranks)}")
    return lines


def _row(cells: Iterable[str]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
