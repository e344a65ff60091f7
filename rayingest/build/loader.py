"""From a description to a running loader: finds the ranks, the index, the limits and the workers, and joins them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from rayingest.build.description import Description
from rayingest.errors import ConfigError
from rayingest.options.types import AfterCopy, Bytes, Count, Decoders, Device, Flag, Folder, MaxErrors, Positive, Seconds
from rayingest.monitor.autoscale import Autoscale
from rayingest.monitor.watch import LoaderWatch
from rayingest.options.checked import checked, option_type, one_of
from rayingest.build.planner import batching_of
from rayingest.plan.order.batching import check_ranks
from rayingest.plan.dispatch.dispatch import Limits
from rayingest.plan.figures.metrics import Watch
from rayingest.plan.protocols import BatchSource
from rayingest.execute.quarantine import Quarantine
from rayingest.build.ranks import Ranks, find_ranks
from rayingest.util.slow import log_if_slow
from rayingest.execute.stream import ManifestStream, Stream
from rayingest.build.summary import describe, describe_unbounded
from rayingest.transforms.images.backend import BACKENDS
from rayingest.execute.unbounded.stream import UnboundedStream

if TYPE_CHECKING:
    from rayingest.execute.cluster.pool import Pool
    from rayingest.trainer.loader import Loader
    from rayingest.trainer.slots import SlotPool

_LEAST_AHEAD_STEPS = 16
_LEAST_AHEAD_ROWS = 4096
_READY_PART = 8
"""Batches that lie ready take hardly more memory here than so small a part of what the store may hold."""


def _pool(value: Any) -> Any:
    from rayingest.execute.cluster.pool import Pool

    if not isinstance(value, Pool):
        raise TypeError
    return value


def _agree(given: Mapping[str, Any]) -> None:
    pool = given.get("pool")
    if pool is not None and given.get("workers", pool.workers) != pool.workers:
        raise ConfigError(
            f"workers={given['workers']} beside a pool of {pool.workers}: the loader takes the pool's; leave one of "
            "them out"
        )
    for name in ("max_errors", "quarantine"):
        if given.get(name) is not None and given.get("on_error", "raise") == "raise":
            raise ConfigError(
                f"{name}={given[name]!r} is for on_error='skip'; with 'raise' the first bad sample is an error"
            )


@checked(_agree)
def make_loader(
    dataset: Description,
    /,
    *,
    rank: Count | None = None,
    world_size: Positive | None = None,
    workers: Decoders = 2,
    device: Device = "cpu",
    max_bytes: Bytes | None = None,
    prefetch: Count = 2,
    pool: Annotated[Any, option_type("a rayingest.Pool", _pool)] | None = None,
    pin_memory: Flag | None = None,
    epochs: Positive | None = None,
    uneven: Flag = False,
    after_copy: AfterCopy | None = None,
    start_timeout: Seconds = 60.0,
    decode_timeout: Seconds = 600.0,
    on_error: Annotated[str, one_of("raise", "skip")] = "raise",
    max_errors: MaxErrors | None = None,
    quarantine: Folder | None = None,
    image_backend: Annotated[str, one_of(*BACKENDS)] | None = None,
) -> Loader:
    """One rank's loader. Errors about the options, the data and the cluster come from here.

    Args:
        rank, world_size: both or neither; else those of Ray Train, of torch.distributed, of RANK and WORLD_SIZE.
        workers: decoders of this rank, 1 CPU each; (least, most) for as many as keep the loop from waiting; 0 does
            everything in this process, without Ray.
        device: where the batches' tensors are to be.
        max_bytes: bytes in the object store for this loader; default: this rank's part of 40 % of the node's store.
        prefetch: batches that are made, and copied to the device, in advance.
        pool: workers shared with other loaders of this process, instead of `workers` of its own.
        pin_memory: page-lock the host memory of batches; default: for a CUDA device.
        epochs: how many there will be, so that nothing is read beyond the last.
        uneven: let a world size that does not divide the batch give ranks that differ by a row.
        after_copy: by field, a function of the tensor, run on the device after the copy (`images.Normalize`).
        start_timeout: seconds to wait for a cluster and for the first decoder.
        decode_timeout: seconds after which a decode is ended with its worker and tried elsewhere, in halves, until the
            sample at fault is known; tasks are sized to take 0.4. Not with `workers=0`.
        on_error: "raise" what is wrong with a sample in its step's place, or "skip": another sample of its window
            stands in for it, with `__valid__` False. Time-outs and mistakes in the description are never skipped.
        max_errors: with "skip", how many samples may be bad (a whole number), or which part of this rank's rows may be
            stand-ins (0.01 for 1 %, of at least 1,000 rows; 1.0 for any), before the run ends. Default: 0.05.
        quarantine: with "skip", a folder for the list of bad samples, a JSON Lines file for each rank; default: in the
            user's cache folder.
        image_backend: how images are decoded, the same for the whole run: "turbo" for JPEGs through libjpeg-turbo and a
            SIMD resizer, the default where these are installed, or "pillow". A state names it and needs the same.
    """
    from rayingest.trainer.device import resolve_device, resolve_pin
    from rayingest.trainer.loader import Loader
    from rayingest.trainer.slots import SlotPool

    batching = batching_of(dataset)
    resolve_pin(pin_memory, resolve_device(device))
    ranks = find_ranks(rank, world_size)
    if dataset.sampling is None and batching.size is not None:
        check_ranks(batching.size, ranks.rank, ranks.world_size, uneven)
    on_ray = workers != 0 or pool is not None
    if on_ray:
        from rayingest.execute.cluster.connection import connect

        with log_if_slow("connecting to Ray, or starting it"):
            connect(start_timeout)
    skip = on_error == "skip"
    stream, view = dataset.planned(ranks, uneven=uneven, on_ray=on_ray, skip=skip, image_backend=image_backend)
    if epochs is not None and isinstance(stream, UnboundedStream):
        raise ConfigError(f"epochs={epochs}: a stream is one epoch, which ends when its partitions do; leave it out")
    kept = _quarantine(stream, quarantine, max_errors) if skip else None
    slots = SlotPool(resolve_pin(pin_memory, resolve_device(device)))
    source: BatchSource
    if on_ray:
        from rayingest.execute.cluster.metrics import RayMetrics
        from rayingest.execute.cluster.pool import Pool

        limits = _limits(stream, ranks, max_bytes, prefetch)
        own = pool is None
        if pool is None:
            pool = Pool(workers if isinstance(workers, int) else workers[0], start_timeout=start_timeout)
        autoscale = None if isinstance(workers, int) else Autoscale(pool, *workers)
        watch = LoaderWatch(RayMetrics(ranks.rank), autoscale=autoscale)
        source = _cluster_source(stream, ranks, pool, own, slots, limits, epochs, decode_timeout, kept, watch)
    else:
        watch = LoaderWatch()
        source = _local_source(stream, max_bytes, kept, watch)
    return Loader(
        source,
        view,
        device=device,
        prefetch=prefetch,
        slots=slots,
        pin_memory=pin_memory,
        epochs=epochs,
        after_copy=after_copy,
        watch=watch,
    )


def _quarantine(stream: Stream, folder: Folder | None, max_errors: float | None) -> Quarantine:
    name = f"{stream.name}-rank{stream.planner.rank}"
    return Quarantine(folder, name, max_errors, stream.work.storage_options)


def _limits(stream: Stream, ranks: Ranks, max_bytes: int | None, prefetch: int) -> Limits:
    from rayingest.execute.cluster import resources

    resources.check_shared_memory(resources.store_bytes())
    if max_bytes is None:
        max_bytes = resources.default_max_bytes(ranks.rank, ranks.world_size, ranks.local_world_size)
    if isinstance(stream, ManifestStream):
        describe(stream, max_bytes)
    if isinstance(stream, UnboundedStream):
        describe_unbounded(stream, max_bytes)
    return Limits(
        max_bytes=max_bytes,
        ahead=_steps_ahead(stream, ranks.world_size),
        ready=prefetch + 1,
        room=max(1, prefetch),
        room_bytes=min(Limits.room_bytes, max_bytes // _READY_PART),
        whole_steps=stream.work.pipeline.needs_whole_steps,
        in_order=stream.in_order,
    )


def _steps_ahead(stream: Stream, world_size: int) -> int:
    """Half a window, so that the next one is there when this one ends, unless there is but one block; and enough for
    small steps to go together.
    """
    rows = max(1, stream.planner.order.samples_per_step // world_size)
    return max(_LEAST_AHEAD_STEPS, -(-_LEAST_AHEAD_ROWS // rows), stream.window_steps // 2)


def _cluster_source(
    stream: Stream,
    ranks: Ranks,
    pool: Pool,
    own: bool,
    slots: SlotPool,
    limits: Limits,
    epochs: int | None,
    decode_timeout: float,
    quarantine: Quarantine | None,
    watch: Watch,
) -> BatchSource:
    from rayingest.execute.cluster import resources
    from rayingest.execute.cluster.feeder import Feeder

    pool.open(ranks.rank, ranks.world_size)
    source = Feeder(
        stream,
        pool,
        slots,
        limits,
        epochs=epochs,
        decode_timeout=decode_timeout,
        owns_pool=own,
        quarantine=quarantine,
        tick=watch.tick,
        span=watch.span,
    )
    resources.count_loader(source, ranks.rank)
    return source


def _local_source(stream: Stream, max_bytes: int | None, quarantine: Quarantine | None, watch: Watch) -> BatchSource:
    from rayingest.execute.local import LocalSource

    max_bytes = stream.kept_bytes if max_bytes is None else max_bytes
    return LocalSource(stream, max_bytes, quarantine, watch.tick)
