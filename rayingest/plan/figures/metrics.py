"""What a loader tells of itself: the figures of `stats()` by name, and the metrics that carry them out of the process.

Owns the names, and what happened between two looks. A figure that counts only grows while its loader lives; any other
is as it is now. `stats()` is the one source: whoever exports metrics, or draws a conclusion, takes the figures from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rayingest.plan.figures.histogram import Counts, grown

Figures = Mapping[str, Any]
"""As `stats()` gives them."""

NODES = "nodes"
"""The figure that holds, by node, those figures that are of the work done there: the parts of their totals."""

LOOKED_AT = "looked_at"
"""The figure that says when the others were recorded, in seconds since 1970. Whoever exports them adds it."""

STALLS = {
    "workers": "a worker to come",
    "read": "blocks being read",
    "room": "room in the object store",
    "decode": "decoding",
    "transfer": "what is decoded to be brought here and put together",
}
"""What the loop waits for, by what the batch that is due lacks; in words."""


@dataclass(frozen=True)
class Metric:
    """One exported metric; `stages` gives, by figure, the value of its tag `stage`.

    "durations" are counters, one for each bound, with the tag `le` that Prometheus' histograms have.
    """

    name: str
    kind: Literal["counter", "gauge", "durations"]
    help: str
    stages: Mapping[str, str]


TAGS = ("JobId", "rank", "loader", "stage", "node")
"""`JobId` is named as in Ray's own metrics: Prometheus has a `job` of its own, for what it scrapes. `loader` numbers
those of a process, since a rank may have several; `node` is where the work was done."""

METRICS = (
    Metric(
        "rayingest_seconds",
        "counter",
        "Seconds that a stage took, its workers together; queue is before one begins, wait and step are the loop's own",
        {
            f"{stage}_seconds": stage
            for stage in ("queue", "read", "decode", "transfer", "assemble", "copy", "wait", "step")
        },
    ),
    Metric(
        "rayingest_durations",
        "durations",
        "How many reads, decodes, waits and steps took up to `le` seconds; a decode may be of several batches",
        {f"{stage}_durations": stage for stage in ("read", "decode", "wait", "step")},
    ),
    Metric(
        "rayingest_stall_seconds",
        "counter",
        "Seconds that the training loop waited, by what the batch that was due lacked",
        {f"stall_{cause}_seconds": cause for cause in STALLS},
    ),
    Metric(
        "rayingest_bytes",
        "counter",
        "Bytes that a stage gave",
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
        "Samples that a stage gave; more are decoded than assembled where work is done twice or given up",
        {"samples_decoded": "decode", "samples": "assemble"},
    ),
    Metric(
        "rayingest_blocks",
        "counter",
        "Blocks that a stage gave, those read again too",
        {"blocks_read": "read"},
    ),
    Metric("rayingest_batches", "counter", "Batches", {"steps": "assemble", "batches": "step"}),
    Metric(
        "rayingest_events",
        "counter",
        "What went otherwise than planned",
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
        "Ranges of remote files, by whether they were in the cache on disk",
        {"cache_hits": "hit", "cache_misses": "miss"},
    ),
    Metric(
        "rayingest_store_bytes",
        "gauge",
        "Bytes of this loader in the object store, of which given up; how many it may have; and the size of the store",
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
        "Bytes of host memory for batches, and how many of them are pinned",
        {"slot_bytes": "slots", "pinned_bytes": "pinned"},
    ),
    Metric(
        "rayingest_queue",
        "gauge",
        "Tasks under way, and batches that are ready",
        {"reads_running": "read", "decodes_running": "decode", "batches_ready": "ready"},
    ),
    Metric(
        "rayingest_workers",
        "gauge",
        "Workers that run, and how many decoders there should be",
        {"readers": "read", "decoders": "decode", "decoders_wanted": "decode_wanted"},
    ),
    Metric(
        "rayingest_cluster",
        "gauge",
        "CPUs of the cluster, and ranks that share them",
        {"cluster_cpus": "cpu", "world_size": "rank"},
    ),
    Metric(
        "rayingest_current_step_seconds",
        "gauge",
        "How long the loop has had its batch in hand, 0 where it has none; seconds of a step are counted when it ends",
        {"current_step_seconds": "step"},
    ),
    Metric(
        "rayingest_look_timestamp_seconds",
        "gauge",
        "When all these figures were looked at, since 1970; 0 once the loader is closed",
        {LOOKED_AT: "look"},
    ),  # the last: where it has changed, so has everything else
)

COUNTED = frozenset(
    figure for metric in METRICS if metric.kind == "counter" for figure in metric.stages
)
DURATIONS = tuple(
    figure for metric in METRICS if metric.kind == "durations" for figure in metric.stages
)

Span = Callable[[str, float, str, tuple[int, int] | None], None]
"""(stage, seconds, who, (epoch, step)): something that took so long has just ended; None where it is of many steps."""


def no_span(stage: str, seconds: float, who: str, position: tuple[int, int] | None) -> None:
    """Nobody traces."""


class Metrics(Protocol):
    """Where figures go."""

    def record(self, figures: Figures) -> None:
        """What a loader's figures are now. Callable from any thread, one at a time."""

    def close(self) -> None:
        """The loader is closed: whatever was as it was then is nothing now. Idempotent."""


class Watch(Protocol):
    """Who looks at a loader from time to time."""

    def attach(self, figures: Callable[[], Figures]) -> None:
        """Look at these figures of a loader from now on, and once more when it is closed; callable from any thread."""

    def tick(self) -> None:
        """Look, if it is time to. Costs next to nothing where it is not. Callable from any thread."""

    def span(self, stage: str, seconds: float, who: str, position: tuple[int, int] | None) -> None:
        """As `Span`."""

    def trace(self, span: Span) -> None:
        """Tell this, from now on, what was done."""

    def findings(self, figures: Figures) -> dict[str, Any]:
        """Further figures, which follow from these."""

    def close(self) -> None:
        """The loader is closed. Idempotent."""


@dataclass(frozen=True)
class Snapshot:
    """What a loader did in `seconds`: figures that count are what they grew by, others are as they were at the end.

    `nodes` holds the same by node, as far as the work has one. A figure that is not there is 0. `durations` are those
    figures that are counts of durations.
    """

    seconds: float
    figures: Mapping[str, float]
    nodes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    durations: Mapping[str, Counts] = field(default_factory=dict)

    def __getitem__(self, figure: str) -> float:
        return self.figures.get(figure, 0.0)


def between(before: Figures, after: Figures, seconds: float) -> Snapshot:
    """What happened from one look to the next, so many seconds later."""
    nodes, earlier = after.get(NODES, {}), before.get(NODES, {})
    by_node = {node: _grown(earlier.get(node, {}), figures) for node, figures in nodes.items()}
    durations = {
        name: grown(before.get(name, ()), after[name]) for name in DURATIONS if name in after
    }
    return Snapshot(seconds, _grown(before, after), by_node, durations)


def _grown(before: Figures, after: Figures) -> dict[str, float]:
    return {
        name: value - before.get(name, 0) if name in COUNTED else value
        for name, value in after.items()
        if isinstance(value, (int, float))
    }
