"""Export a loader's figures as Ray metrics, which every node of the cluster offers to Prometheus.

Owns the translation alone: a counter grows by the growth of its figure, a gauge has its figure's
value. A histogram is exported as one counter per bound, which is how Prometheus stores histograms.
Ray's own histogram takes each value separately, in 4 us.
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
"""The numbers of this process's open loaders."""
_KINDS = {"counter": Counter, "gauge": Gauge, "durations": Counter}
_WITHIN = (*((f"{BOUNDS[number]:g}", number + 1) for number in COARSE), ("+Inf", len(BOUNDS) + 1))
"""The exported bounds, each with the number of counts that it sums."""


class _Series(NamedTuple):
    """One time series of a metric; only durations have `le`, an upper bound in seconds."""

    stage: str
    node: str
    le: str = ""

    @property
    def tags(self) -> dict[str, str]:
        tags = {"stage": self.stage, "node": self.node}
        return {**tags, "le": self.le} if self.le else tags


class RayMetrics:
    """The metrics of one loader of this process, which must be connected to Ray."""

    def __init__(self, rank: int) -> None:
        self._connection = Connection()
        self._connection.bind()
        context = ray.get_runtime_context()
        self._number: int | None = next(n for n in itertools.count() if n not in _numbers)
        _numbers.add(self._number)
        self._node = context.get_node_id()[:8]
        tags = {"JobId": str(context.get_job_id()), "rank": str(rank), "loader": str(self._number)}
        # Each metric, Ray's object for it, and the values exported so far.
        self._metrics = []
        for metric in METRICS:
            names = (*TAGS, "le") if metric.kind == "durations" else TAGS
            exported = _KINDS[metric.kind](metric.name, metric.help, names)
            exported.set_default_tags(tags)
            self._metrics.append((metric, exported, dict[_Series, float]()))

    def record(self, figures: Figures) -> None:
        """Export the current figures; do nothing if Ray was shut down."""
        if self._number is None or not self._connection.alive:
            return
        figures = {**figures, LOOKED_AT: time.time()}
        for metric, exported, values in self._metrics:
            for series, value in _values(metric, figures, self._node):
                if metric.kind == "gauge":  # each time: Ray forgets a gauge with every export
                    exported.set(value, series.tags)
                    values[series] = value
                    continue
                growth = value - values.get(series, 0.0)
                if growth > 0:  # negative if work that was ordered and counted has failed
                    exported.inc(growth, series.tags)
                    values[series] = value

    def close(self) -> None:
        """Set all gauges to 0, and free this loader's number for another loader."""
        if self._number is None:
            return
        if self._connection.alive:
            for metric, exported, values in self._metrics:
                for series in values if metric.kind == "gauge" else ():
                    exported.set(0.0, series.tags)
        _numbers.discard(self._number)
        self._number = None


def _values(metric: Metric, figures: Figures, here: str) -> Iterator[tuple[_Series, float]]:
    """Yield every series of a metric: by node if nodes have the figure, otherwise of this node.

    Histograms are not split by node: many nodes would make a thousand series, at 10 us each.
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
