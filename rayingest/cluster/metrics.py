"""Figures of a loader as metrics of Ray, which every node of the cluster exports to Prometheus.

Owns nothing but the translation: a counter grows by what its figure grew by, a gauge is what its figure is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge

from rayingest.plan.metrics import COUNTED, METRICS, NODES, TAGS, Figures, Metric

_numbers: set[int] = set()
"""Of the loaders of this process that are open."""


class RayMetrics:
    """Metrics of one loader of this process, which is connected to Ray."""

    def __init__(self, rank: int) -> None:
        context = ray.get_runtime_context()
        self._number: int | None = next(n for n in itertools.count() if n not in _numbers)
        _numbers.add(self._number)
        self._node = context.get_node_id()[:8]
        tags = {"job": str(context.get_job_id()), "rank": str(rank), "loader": str(self._number)}
        kinds = {"counter": Counter, "gauge": Gauge}
        self._metrics = [(metric, kinds[metric.kind](metric.name, metric.help, TAGS)) for metric in METRICS]
        for _, exported in self._metrics:
            exported.set_default_tags(tags)
        self._told: dict[tuple[str, str], float] = {}

    def record(self, figures: Figures) -> None:
        """What the figures are now, those of nodes by node."""
        for metric, exported in self._metrics:
            for figure, stage, node, value in _values(metric, figures, self._node):
                tags = {"stage": stage, "node": node}
                if metric.kind == "gauge":  # Ray forgets it with every export
                    exported.set(value, tags)
                elif (more := value - self._told.get((figure, node), 0.0)) > 0:
                    exported.inc(more, tags)
                self._told[figure, node] = value

    def close(self) -> None:
        """What was so many is none now; another loader may take this one's number."""
        if self._number is None:
            return
        if ray.is_initialized():
            self.record({figure: 0 for figure, _ in self._told if figure not in COUNTED})
        _numbers.discard(self._number)
        self._number = None


def _values(metric: Metric, figures: Figures, here: str) -> Iterator[tuple[str, str, str, float]]:
    """(figure, stage, node, value); a figure that nodes have parts of is that of this node no more."""
    nodes: dict[str, dict[str, Any]] = figures.get(NODES, {})
    for figure, stage in metric.stages.items():
        parts = [(node, of_node[figure]) for node, of_node in nodes.items() if figure in of_node]
        if not parts and figure in figures:
            parts = [(here, figures[figure])]
        for node, value in parts:
            yield figure, stage, node, float(value)
