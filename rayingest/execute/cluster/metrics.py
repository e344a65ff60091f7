"""Figures of a loader as metrics of Ray, which every node of the cluster exports to Prometheus.

Owns nothing but the translation: a counter grows by what its figure grew by, a gauge is what its figure is. Histogram
are counters, one for each bound, as Prometheus has histograms: Ray's own takes each by itself, and 4 us for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import ray
from ray.util.metrics import Counter, Gauge

from rayingest.execute.cluster.connection import Connection
from rayingest.plan.figures.histogram import BOUNDS, COARSE
from rayingest.plan.figures.metrics import LOOKED_AT, METRICS, NODES, TAGS, Figures, Metric

_numbers: set[int] = set()
"""Of the loaders of this process that are open."""
_KINDS = {"counter": Counter, "gauge": Gauge, "durations": Counter}
_WITHIN = (*((f"{BOUNDS[number]:g}", number + 1) for number in COARSE), ("+Inf", len(BOUNDS) + 1))
"""Bounds that are exported, and of how many counts each is the sum."""


class _Series(NamedTuple):
    """One of the values that a metric has; `le` is of durations alone."""

    stage: str
    node: str
    le: str = ""

    @property
    def tags(self) -> dict[str, str]:
        tags = {"stage": self.stage, "node": self.node}
        return {**tags, "le": self.le} if self.le else tags


class RayMetrics:
    """Metrics of one loader of this process, which is connected to Ray."""

    def __init__(self, rank: int) -> None:
        self._connection = Connection()
        self._connection.bind()
        context = ray.get_runtime_context()
        self._number: int | None = next(n for n in itertools.count() if n not in _numbers)
        _numbers.add(self._number)
        self._node = context.get_node_id()[:8]
        tags = {"JobId": str(context.get_job_id()), "rank": str(rank), "loader": str(self._number)}
        self._metrics = []
        for metric in METRICS:
            names = (*TAGS, "le") if metric.kind == "durations" else TAGS
            exported = _KINDS[metric.kind](metric.name, metric.help, names)
            exported.set_default_tags(tags)
            self._metrics.append((metric, exported, dict[_Series, float]()))

    def record(self, figures: Figures) -> None:
        """What the figures are now, those of nodes by node. Nothing where Ray was shut down."""
        if self._number is None or not self._connection.alive:
            return
        figures = {**figures, LOOKED_AT: time.time()}
        for metric, exported, told in self._metrics:
            for series, value in _values(metric, figures, self._node):
                if metric.kind == "gauge":  # Ray forgets it with every export
                    exported.set(value, series.tags)
                    told[series] = value
                elif (
                    more := value - told.get(series, 0.0)
                ) > 0:  # less: what was ordered and counted has failed
                    exported.inc(more, series.tags)
                    told[series] = value

    def close(self) -> None:
        """What was so many is none now; another loader may take this one's number."""
        if self._number is None:
            return
        if self._connection.alive:
            for metric, exported, told in self._metrics:
                for series in told if metric.kind == "gauge" else ():
                    exported.set(0.0, series.tags)
        _numbers.discard(self._number)
        self._number = None


def _values(metric: Metric, figures: Figures, here: str) -> Iterator[tuple[_Series, float]]:
    """Of each series; a figure that nodes have parts of is that of this node no more.

    Histogram have none: of many nodes they would be a thousand series, and Ray takes 10 us for each.
    """
    nodes: dict[str, dict[str, Any]] = figures.get(NODES, {})
    for figure, stage in metric.stages.items():
        by_node = {} if metric.kind == "durations" else nodes
        parts = [(node, of_node[figure]) for node, of_node in by_node.items() if figure in of_node]
        if not parts and figure in figures:
            parts = [(here, figures[figure])]
        for node, value in parts:
            if metric.kind == "durations":
                for le, counts in _WITHIN:
                    yield _Series(stage, node, le), float(sum(value[:counts]))
            else:
                yield _Series(stage, node), float(value)
