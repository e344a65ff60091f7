"""Build the source of a loader's batches on Ray: its limits, its pool of workers, and the feeder.

Owns how a loader's budgets follow from its options and its stream. `build.loader` imports this
module only if a loader has workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rayingest.build.description import RankPlan, Ranks, bytes_of_window
from rayingest.execute.cluster import resources
from rayingest.execute.cluster.feeder import Feeder
from rayingest.execute.cluster.metrics import RayMetrics
from rayingest.execute.cluster.pool import Pool
from rayingest.execute.cluster.reader import BLOCK_OVERHEAD
from rayingest.execute.cluster.shared_pool import Lease, lease_shared_pool
from rayingest.execute.quarantine import Quarantine
from rayingest.execute.sliced_stream import SlicedStream
from rayingest.execute.stream import ManifestStream, Stream
from rayingest.monitor.autoscale import Autoscale
from rayingest.monitor.watch import LoaderWatch
from rayingest.plan.dispatch.limits import Limits
from rayingest.trainer.prefetch import SlotPool

_LEAST_AHEAD_STEPS = 16
_LEAST_RUNNING_STEPS = 4
_LEAST_AHEAD_ROWS = 4096
_RUN_PART = 3
"""Samples of a run that is read in slices take 1/3 of `max_bytes`: the next run needs as much."""
_READY_PART = 8
"""Batches that are ready take at most 1/8 of `max_bytes` in this process's memory."""


@dataclass(frozen=True)
class Workers:
    """The options of `loader` that concern workers."""

    workers: int | tuple[int, int] | None
    pool: Pool | None
    max_bytes: int | None
    prefetch: int
    copied_ahead: int
    epochs: int | None
    start_timeout: float
    decode_timeout: float


def build_source(
    stream: Stream,
    plan: RankPlan,
    ranks: Ranks,
    slots: SlotPool,
    options: Workers,
    quarantine: Quarantine | None,
) -> tuple[Feeder, LoaderWatch]:
    """Start the workers of a loader, or open its pool, and return the source of its batches."""
    lease = _lease(options)
    workers = options.workers
    autoscale = Autoscale(lease.pool, *workers) if isinstance(workers, tuple) else None
    try:
        lease.pool.open(ranks.rank, ranks.world_size)
        max_bytes, max_bytes_for = _max_bytes(lease.pool, ranks, options.max_bytes)
        stream = _sliced(stream, max_bytes)
        limits = _limits(stream, plan, ranks, max_bytes, options)
    except BaseException:
        lease.end()
        raise
    watch = LoaderWatch(RayMetrics(ranks.rank), autoscale=autoscale)
    source = Feeder(
        stream,
        lease,
        slots,
        limits,
        epochs=options.epochs,
        decode_timeout=options.decode_timeout,
        max_bytes_for=max_bytes_for,
        quarantine=quarantine,
        tick=watch.tick,
        span=watch.span,
    )
    resources.count_loader(source, ranks.rank)
    return source, watch


def _lease(options: Workers) -> Lease:
    """Return the pool of a loader: the user's, the process's shared one, or one of its own."""
    workers = options.workers
    if options.pool is not None:
        return Lease(options.pool)
    if workers is None:
        return lease_shared_pool(options.start_timeout)
    least = workers if isinstance(workers, int) else workers[0]
    pool = Pool(least, start_timeout=options.start_timeout)
    return Lease(pool, pool.close)


def _max_bytes(
    pool: Pool, ranks: Ranks, given: int | None
) -> tuple[int, Callable[[int], int] | None]:
    """Return `max_bytes`, and how it follows from the number of ranks that can be on this node.

    That is None if the number is certain, or if `max_bytes` is given.
    """
    if given is not None:
        return given, None
    max_bytes_for = resources.default_max_bytes(ranks.rank)
    if ranks.local_world_size is not None:
        return max_bytes_for(ranks.local_world_size), None
    return max_bytes_for(pool.local_ranks()), max_bytes_for


def _sliced(stream: Stream, max_bytes: int) -> Stream:
    """Return the stream, in slices of blocks if a window of whole blocks exceeds the budget.

    Bad samples that are skipped are replaced by others of any block, which no slice has. Without a
    shuffle a block is needed once.
    """
    if not isinstance(stream, ManifestStream) or stream.work.skip:
        return stream
    if stream.planner.order.seed is None or bytes_of_window(stream) <= max_bytes:
        return stream
    rows = max(1, stream.planner.order.samples_per_step // stream.planner.world_size)
    step_bytes = rows * (stream.row_bytes + BLOCK_OVERHEAD)
    run_steps = max(1, int(max_bytes / _RUN_PART / step_bytes))
    keep_runs = 2 + -(-_steps_ahead(stream, stream.planner.world_size) // run_steps)
    return SlicedStream(
        stream.planner, stream.work, stream.flag_valid, stream.manifest, run_steps, keep_runs
    )


def _limits(
    stream: Stream, plan: RankPlan, ranks: Ranks, max_bytes: int, options: Workers
) -> Limits:
    resources.check_shared_memory(resources.store_bytes())
    plan.describe(max_bytes)
    reading: dict[str, int] = {}
    if isinstance(stream, SlicedStream):
        # A reader holds the whole block in its memory while it cuts out the slice.
        blocks = Limits.reader_bytes * stream.manifest.num_blocks // stream.manifest.total_bytes
        reading = {"reader_bytes": 0, "read_blocks": max(1, blocks // Limits.min_reads)}
    return Limits(
        **reading,
        max_bytes=max_bytes,
        read_ahead=_steps_ahead(stream, ranks.world_size),
        decode_ahead=options.prefetch + 1,
        ready_batches=max(1, options.prefetch),
        copied_ahead=options.copied_ahead,
        ready_bytes=min(Limits.ready_bytes, max_bytes // _READY_PART),
        whole_steps=stream.work.pipeline.needs_whole_steps,
        in_order=stream.in_order,
    )


def _steps_ahead(stream: Stream, world_size: int) -> int:
    """Return how many steps are planned ahead.

    Half a window, so that the next window is there when this one ends (none if there is one block);
    and at least enough rows that small steps share a task.
    """
    if isinstance(stream, SlicedStream):
        return max(_LEAST_RUNNING_STEPS, stream.run_steps)
    rows = max(1, stream.planner.order.samples_per_step // world_size)
    return max(_LEAST_AHEAD_STEPS, -(-_LEAST_AHEAD_ROWS // rows), stream.window_steps // 2)
