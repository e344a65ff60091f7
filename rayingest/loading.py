"""From a description to a running loader: finds the ranks, the index, the limits and the workers, and joins them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from rayingest.errors import ConfigError
from rayingest.kinds import AfterCopy, Bytes, Count, Decoders, Device, Flag, Folder, MaxErrors, Positive, Seconds
from rayingest.observe.rescale import Rescale
from rayingest.observe.watch import LoaderWatch
from rayingest.options import checked, kind, one_of
from rayingest.plan.batching import check_ranks
from rayingest.plan.dispatch import Limits
from rayingest.plan.grouped import GroupedPlanner
from rayingest.plan.metrics import Watch
from rayingest.plan.mixed import MixedPlanner
from rayingest.plan.planner import Planner
from rayingest.plan.position import StateCodec
from rayingest.plan.protocols import BatchSource
from rayingest.quarantine import Quarantine
from rayingest.ranks import Ranks, find_ranks
from rayingest.silence import told
from rayingest.stream import Stream
from rayingest.summary import describe
from rayingest.transforms.decode_path import PATHS, choose_path

if TYPE_CHECKING:
    from rayingest.cluster.pool import Pool
    from rayingest.dataset import Dataset
    from rayingest.trainer.loader import Loader
    from rayingest.trainer.slots import SlotPool

_LEAST_AHEAD_STEPS = 16
_LEAST_AHEAD_ROWS = 4096
_LOCAL_BYTES = 256 << 20


@dataclass(frozen=True)
class _View:
    """A rank's plan as its loader sees it."""

    planner: Planner
    codec: StateCodec

    def steps_in(self, epoch: int) -> int:
        return self.planner.steps_in(epoch)

    @property
    def rank(self) -> int:
        return self.planner.rank

    @property
    def world_size(self) -> int:
        return self.planner.world_size

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        return self.codec.state(epoch, step)

    def position(self, state: dict[str, Any]) -> tuple[int, int]:
        return self.codec.position(state)


def _pool(value: Any) -> Any:
    from rayingest.cluster.pool import Pool

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
    dataset: Dataset,
    /,
    *,
    rank: Count | None = None,
    world_size: Positive | None = None,
    workers: Decoders = 2,
    device: Device = "cpu",
    max_bytes: Bytes | None = None,
    prefetch: Count = 2,
    pool: Annotated[Any, kind("a rayingest.Pool", _pool)] | None = None,
    pin_memory: Flag | None = None,
    epochs: Positive | None = None,
    uneven: Flag = False,
    after_copy: AfterCopy | None = None,
    start_timeout: Seconds = 60.0,
    on_error: Annotated[str, one_of("raise", "skip")] = "raise",
    max_errors: MaxErrors | None = None,
    quarantine: Folder | None = None,
    decode_path: Annotated[str, one_of(*PATHS)] | None = None,
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
        on_error: "raise" what is wrong with a sample in its step's place, or "skip": another sample of its window
            stands in for it, with `__valid__` False. Time-outs and mistakes in the description are never skipped.
        max_errors: with "skip", how many samples may be bad (a whole number), or which part of this rank's rows may be
            stand-ins (0.01 for 1 %, of at least 1,000 rows; 1.0 for any), before the run ends. Default: 0.05.
        quarantine: with "skip", a folder for the list of bad samples, a JSON Lines file for each rank; default: in the
            user's cache folder.
        decode_path: how images are decoded, the same for the whole run: "turbo" for JPEGs through libjpeg-turbo and a
            SIMD resizer, the default where these are installed, or "pillow". A state names it and needs the same.
    """
    from rayingest.trainer.device import resolve_device, resolve_pin
    from rayingest.trainer.loader import Loader
    from rayingest.trainer.slots import SlotPool

    if dataset.batching is None:
        raise ConfigError("how many samples make a step? say so with .batch(global_size) before .loader()")
    resolve_pin(pin_memory, resolve_device(device))
    ranks = find_ranks(rank, world_size)
    if dataset.sampling is None and dataset.batching.size is not None:
        check_ranks(dataset.batching.size, ranks.rank, ranks.world_size, uneven)
    on_ray = workers != 0 or pool is not None
    if on_ray:
        from rayingest.cluster.session import connect

        with told("connecting to Ray, or starting it"):
            connect(start_timeout)
    known = dataset.survey(ranks.rank, on_ray)
    planner = dataset.planner(known, ranks.rank, ranks.world_size, uneven)
    skip = on_error == "skip"
    if skip and isinstance(planner, GroupedPlanner):
        raise ConfigError(
            "on_error='skip' beside .pack or batch(max_tokens=...): a stand-in would not be as long as the sample that "
            "it stands in for; leave bad samples out with .filter"
        )
    work = dataset.work.made(skip, choose_path(decode_path))
    stream = Stream(known.manifest, planner, work, flag_valid=skip or planner.order.partial == "pad")
    kept = _quarantine(stream, quarantine, max_errors) if skip else None
    slots = SlotPool(resolve_pin(pin_memory, resolve_device(device)))
    source: BatchSource
    if on_ray:
        from rayingest.cluster.metrics import RayMetrics
        from rayingest.cluster.pool import Pool

        limits = _limits(stream, ranks, max_bytes, prefetch)
        own = pool is None
        if pool is None:
            pool = Pool(workers if isinstance(workers, int) else workers[0], start_timeout=start_timeout)
        rescale = None if isinstance(workers, int) else Rescale(pool, *workers)
        watch = LoaderWatch(RayMetrics(ranks.rank), rescale=rescale)
        source = _cluster_source(stream, ranks, pool, own, slots, limits, epochs, kept, watch)
    else:
        watch = LoaderWatch()
        source = _local_source(stream, max_bytes, kept, watch)
    codec = StateCodec(
        planner.fingerprint,
        planner.order,
        work.pipeline.path,
        work.code_mark,
        view=known.view_mark,
        calendar=planner.calendar,
        lengths=known.lengths_mark,
        grouping=str(planner.order) if isinstance(planner, GroupedPlanner) else "",
        mixture=str(planner.order) if isinstance(planner, MixedPlanner) else "",
        weights=known.weights_mark,
        steps_in=planner.steps_in,
    )
    return Loader(
        source,
        _View(planner, codec),
        device=device,
        prefetch=prefetch,
        slots=slots,
        pin_memory=pin_memory,
        epochs=epochs,
        after_copy=after_copy,
        watch=watch,
    )


def _quarantine(stream: Stream, folder: Folder | None, max_errors: float | None) -> Quarantine:
    name = f"{stream.manifest.fingerprint}-rank{stream.planner.rank}"
    return Quarantine(folder, name, max_errors, stream.work.storage_options)


def _limits(stream: Stream, ranks: Ranks, max_bytes: int | None, prefetch: int) -> Limits:
    from rayingest.cluster import budget

    budget.check_shared_memory(budget.store_bytes())
    if max_bytes is None:
        max_bytes = budget.default_bytes(ranks.rank, ranks.world_size, ranks.local_world_size)
    describe(stream, max_bytes)
    return Limits(
        max_bytes=max_bytes,
        ahead=_steps_ahead(stream, ranks.world_size),
        ready=prefetch + 1,
        room=max(1, prefetch),
        whole_steps=stream.work.pipeline.needs_whole_steps,
    )


def _steps_ahead(stream: Stream, world_size: int) -> int:
    """Half a window, so that the next one is there when this one ends, unless there is but one block; and enough for
    small steps to go together.
    """
    order = stream.planner.order
    rows = max(1, order.step_samples // world_size)
    window = order.window_steps if stream.manifest.num_blocks > 1 else 0
    return max(_LEAST_AHEAD_STEPS, -(-_LEAST_AHEAD_ROWS // rows), window // 2)


def _cluster_source(
    stream: Stream,
    ranks: Ranks,
    pool: Pool,
    own: bool,
    slots: SlotPool,
    limits: Limits,
    epochs: int | None,
    quarantine: Quarantine | None,
    watch: Watch,
) -> BatchSource:
    from rayingest.cluster import budget
    from rayingest.cluster.feeder import Feeder

    pool.open(ranks.rank, ranks.world_size)
    source = Feeder(
        stream,
        pool,
        slots,
        limits,
        epochs=epochs,
        owns_pool=own,
        quarantine=quarantine,
        tick=watch.tick,
        span=watch.span,
    )
    budget.count_loader(source, ranks.rank)
    return source


def _local_source(stream: Stream, max_bytes: int | None, quarantine: Quarantine | None, watch: Watch) -> BatchSource:
    from rayingest.local import LocalSource

    if max_bytes is None:
        order, manifest = stream.planner.order, stream.manifest
        window = order.window_samples / stream.planner.world_size
        max_bytes = max(_LOCAL_BYTES, int(1.5 * window * manifest.total_bytes / stream.planner.num_samples))
    return LocalSource(stream, max_bytes, quarantine, watch.tick)
