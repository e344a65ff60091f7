"""Name the figures of `stats()` and the metrics that export them, and compare two looks at them.

Owns the names and the descriptions. A counter only grows while its loader lives; a gauge is the
value of now. `stats()` is the one source: metrics, diagnoses and scaling all use its figures.
Refuses to measure, and to export: it has no clock and no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rayingest.plan.figures.histogram import Counts, subtract_counts

Figures = Mapping[str, Any]
"""Figures by name, as `stats()` returns them."""

NODES = "nodes"
"""The figure that splits others by node: a mapping from node to the figures of its workers. The
totals are the sums over the nodes."""

LOOKED_AT = "looked_at"
"""The time at which the figures were recorded, in seconds since 1970. The exporter adds it."""

STALLS = {
    "workers": "a worker to start",
    "read": "blocks being read",
    "room": "room in the object store",
    "decode": "decoding",
    "transfer": "the transfer and assembly of decoded samples",
}
"""Why the loop waits, by cause: in words, what the batch that is due lacks."""


@dataclass(frozen=True)
class Metric:
    """One exported metric; `stages` maps each of its figures to the value of the tag `stage`.

    The kind "durations" is exported as counters, one for each bound, with the tag `le` of
    Prometheus' histograms.
    """

    name: str
    kind: Literal["counter", "gauge", "durations"]
    help: str
    stages: Mapping[str, str]


TAGS = ("JobId", "SubmissionId", "rank", "loader", "stage", "node")
"""The tags of every metric.

`JobId` has the name that Ray's own metrics use: in Prometheus `job` is the scrape job.
`SubmissionId` is the id of `ray job submit`, "" for a job that was not submitted. `loader` is
the number of the loader in its process, because a rank may have several. `node` is the node that
did the work."""

METRICS = (
    Metric(
        "rayingest_seconds",
        "counter",
        "Seconds that a stage took, summed over its workers; queue: tasks that wait for a worker; "
        "wait and step: the training loop",
        {
            f"{stage}_seconds": stage
            for stage in ("queue", "read", "decode", "transfer", "assemble", "copy", "wait", "step")
        },
    ),
    Metric(
        "rayingest_durations",
        "durations",
        "Number of reads, decodes, waits and steps that took up to `le` seconds; one decode may "
        "serve several batches",
        {f"{stage}_durations": stage for stage in ("read", "decode", "wait", "step")},
    ),
    Metric(
        "rayingest_stall_seconds",
        "counter",
        "Seconds that the training loop waited, by what the batch due lacked",
        {f"stall_{cause}_seconds": cause for cause in STALLS},
    ),
    Metric(
        "rayingest_bytes",
        "counter",
        "Bytes that a stage produced",
        {
            "bytes_read": "read",
            "bytes_decoded": "decode",
            "bytes_assembled": "assemble",
            "bytes_copied": "copy",
        },
    ),
    Metric(
        "rayingest_samples",
        "counter",
        "Samples that a stage produced; decode exceeds assemble if work is repeated or dropped",
        {"samples_decoded": "decode", "samples": "assemble"},
    ),
    Metric(
        "rayingest_blocks",
        "counter",
        "Blocks that a stage produced, repeated reads included",
        {"blocks_read": "read"},
    ),
    Metric(
        "rayingest_batches",
        "counter",
        "Batches that were assembled, and batches that the training loop took",
        {"steps": "assemble", "batches": "step"},
    ),
    Metric(
        "rayingest_events",
        "counter",
        "Retries, hedges, lost workers and blocks, repeated reads, bad samples",
        {
            "retries": "retry",
            "storage_retries": "storage_retry",
            "hedges": "hedge",
            "workers_lost": "worker_lost",
            "blocks_lost": "block_lost",
            "blocks_reread": "block_reread",
            "samples_bad": "bad_sample",
        },
    ),
    Metric(
        "rayingest_cache",
        "counter",
        "Ranges of remote files: found in the cache on disk (hit), or fetched (miss)",
        {"cache_hits": "hit", "cache_misses": "miss"},
    ),
    Metric(
        "rayingest_store_bytes",
        "gauge",
        "Bytes in the object store: of this loader, of its dropped objects that are not freed "
        "yet, its limit, and the size of the store",
        {
            "bytes_in_flight": "in_flight",
            "released_bytes": "released",
            "max_bytes": "limit",
            "node_store_bytes": "store",
        },
    ),
    Metric(
        "rayingest_host_bytes",
        "gauge",
        "Bytes of host memory for batches, and the pinned bytes among them",
        {"slot_bytes": "slots", "pinned_bytes": "pinned"},
    ),
    Metric(
        "rayingest_queue",
        "gauge",
        "Tasks in progress, and batches that are ready",
        {"reads_running": "read", "decodes_running": "decode", "batches_ready": "ready"},
    ),
    Metric(
        "rayingest_workers",
        "gauge",
        "Workers that run, and the number of decoders requested",
        {"readers": "read", "decoders": "decode", "decoders_wanted": "decode_wanted"},
    ),
    Metric(
        "rayingest_cluster",
        "gauge",
        "CPUs of the cluster, and the number of ranks that share them",
        {"cluster_cpus": "cpu", "world_size": "rank"},
    ),
    Metric(
        "rayingest_current_step_seconds",
        "gauge",
        "Seconds since the loop took its current batch, 0 without one; "
        "rayingest_seconds counts a step when it ends",
        {"current_step_seconds": "step"},
    ),
    Metric(
        "rayingest_look_timestamp_seconds",
        "gauge",
        "Time of the last look at the figures, in seconds since 1970; 0 once the loader is closed",
        {LOOKED_AT: "look"},
    ),  # the last one: a reader that sees it changed knows that all others are up to date
)

COUNTERS = frozenset(
    figure for metric in METRICS if metric.kind == "counter" for figure in metric.stages
)
"""The figures that are counters."""
DURATIONS = tuple(
    figure for metric in METRICS if metric.kind == "durations" for figure in metric.stages
)
"""The figures that are counts of durations (see `histogram`)."""

Span = Callable[[str, float, str, tuple[int, int] | None], None]
"""Reports work that has just ended: (stage, seconds, who, (epoch, step)). The position is None if
the work was for several steps."""


def no_span(stage: str, seconds: float, who: str, position: tuple[int, int] | None) -> None:
    """Ignore the span."""


class Metrics(Protocol):
    """Receives the figures of a loader, to export them."""

    def record(self, figures: Figures) -> None:
        """Export the current figures of the loader. Callable from any thread, one at a time."""

    def close(self) -> None:
        """Set the gauges to 0: the loader is closed. Idempotent."""


class Watch(Protocol):
    """Looks at a loader's figures from time to time."""

    def attach(self, figures: Callable[[], Figures]) -> None:
        """Look at these figures from now on, and once more at the close.

        `figures` must be callable from any thread.
        """

    def tick(self) -> None:
        """Look if a look is due; cheap if none is. Callable from any thread."""

    def span(self, stage: str, seconds: float, who: str, position: tuple[int, int] | None) -> None:
        """Record work that has just ended; the arguments are those of `Span`."""

    def trace(self, span: Span) -> None:
        """Pass all further spans to this function."""

    def findings(self, figures: Figures) -> dict[str, Any]:
        """Return further figures, derived from these."""

    def close(self) -> None:
        """Look once more, and stop. Idempotent."""


@dataclass(frozen=True)
class Snapshot:
    """What a loader did in a period of `seconds`.

    `figures` has the growth of each counter, and the value of each gauge at the end. `nodes` has
    the same by node, for the figures that are known by node. `durations` has the growth of each
    histogram. Indexing gives a figure, 0 if it is absent.
    """

    seconds: float
    figures: Mapping[str, float]
    nodes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    durations: Mapping[str, Counts] = field(default_factory=dict)

    def __getitem__(self, figure: str) -> float:
        return self.figures.get(figure, 0.0)


def take_snapshot(before: Figures, after: Figures, seconds: float) -> Snapshot:
    """Return what happened between two looks at the figures that are `seconds` apart."""
    nodes, earlier = after.get(NODES, {}), before.get(NODES, {})
    by_node = {node: _growth(earlier.get(node, {}), figures) for node, figures in nodes.items()}
    durations = {
        name: subtract_counts(after[name], before.get(name, ()))
        for name in DURATIONS
        if name in after
    }
    return Snapshot(seconds, _growth(before, after), by_node, durations)


def _growth(before: Figures, after: Figures) -> dict[str, float]:
    return {
        name: value - before.get(name, 0) if name in COUNTERS else value
        for name, value in after.items()
        if isinstance(value, (int, float))
    }
