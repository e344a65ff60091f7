"""Export a loader's figures as Ray metrics, which every node of the cluster offers to Prometheus.

Owns the translation alone. Every metric is one of Ray's gauges, counters too: Ray forgets a gauge
that is not set again, within two of its export intervals, but exports a counter of a process that
has ended until the node goes. A histogram is exported as one counter per bound, which is how
Prometheus stores histograms. Ray's own histogram takes each value separately, in 4 us.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import ray
from ray._private.worker import global_worker
from ray.util.metrics import Gauge

from rayingest.execute.cluster.connection import Connection
from rayingest.plan.figures.histogram import BOUNDS, COARSE
from rayingest.plan.figures.metrics import LOOKED_AT, METRICS, NODES, TAGS, Figures, Metric

_numbers: set[int] = set()
"""The numbers of this process's open loaders."""
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
        tags = {
            "JobId": str(context.get_job_id()),
            "SubmissionId": _submission_id(),
            "rank": str(rank),
            "loader": str(self._number),
        }
        # Each metric, Ray's object for it, and the values exported last.
        self._metrics = []
        for metric in METRICS:
            names = (*TAGS, "le") if metric.kind == "durations" else TAGS
            # The end of a name says what Prometheus can compute: a rate, or not.
            name = metric.name if metric.kind == "gauge" else f"{metric.name}_total"
            exported = Gauge(name, metric.help, names)
            exported.set_default_tags(tags)
            self._metrics.append((metric, exported, dict[_Series, float]()))

    def record(self, figures: Figures) -> None:
        """Export the current figures; do nothing if Ray was shut down."""
        if self._number is None or not self._connection.alive:
            return
        figures = {**figures, LOOKED_AT: time.time()}
        for metric, exported, values in self._metrics:
            for series, value in _values(metric, figures, self._node):
                if metric.kind != "gauge":
                    # Work that was ordered and counted can fail; a counter never falls.
                    value = max(value, values.get(series, 0.0))  # noqa: PLW2901
                    if not value:
                        continue
                exported.set(value, series.tags)  # each time: Ray forgets a gauge with every export
                values[series] = value

    def close(self) -> None:
        """Set what is a gauge to 0, and free this loader's number for another loader.

        Ray exports the last values of all metrics once more.
        """
        if self._number is None:
            return
        if self._connection.alive:
            for metric, exported, values in self._metrics:
                for series in values if metric.kind == "gauge" else ():
                    exported.set(0.0, series.tags)
        _numbers.discard(self._number)
        self._number = None


def _submission_id() -> str:
    """Return the id that `ray job submit` gave this process's job, or "" for another job."""
    return str(global_worker.core_worker.get_job_config().metadata.get("job_submission_id", ""))


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
