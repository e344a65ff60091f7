"""Build a running loader from a description.

Owns the options of `loader`: finds the ranks, builds the stream, and connects it to workers or
to this process. The ranks come from the options, Ray Train, torch.distributed, or the environment
variables that a launcher sets. `on_ray` owns the part that needs Ray.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from rayingest.build.compatibility import Feature, check_complete
from rayingest.build.description import Description, Ranks
from rayingest.errors import ConfigError
from rayingest.execute.local import LocalSource
from rayingest.execute.quarantine import Quarantine
from rayingest.execute.stream import Stream
from rayingest.monitor.watch import LoaderWatch
from rayingest.options import (
    AfterCopy,
    Bytes,
    Count,
    Decoders,
    Device,
    Flag,
    Folder,
    MaxErrors,
    Positive,
    Seconds,
    checked,
    one_of,
    option_type,
)
from rayingest.plan.order.planner import check_ranks
from rayingest.plan.protocols import BatchSource
from rayingest.transforms.images.jpeg import BACKENDS
from rayingest.util.slow import log_if_slow

if TYPE_CHECKING:
    from rayingest.trainer.loader import Loader


def _pool(value: Any) -> Any:
    from rayingest.execute.cluster.pool import Pool

    if not isinstance(value, Pool):
        raise TypeError
    return value


def _check_options(options: Mapping[str, Any]) -> None:
    pool = options.get("pool")
    if pool is not None and options.get("workers") not in {None, pool.workers}:
        raise ConfigError(
            f"the loader takes the workers of its pool: workers={options['workers']} cannot be "
            f"used with a pool of {pool.workers} workers; leave one of them out"
        )
    for name in ("max_errors", "quarantine"):
        if options.get(name) is not None and options.get("on_error", "raise") == "raise":
            raise ConfigError(
                f"{name}={options[name]!r} is for on_error='skip': with 'raise' the first bad "
                "sample is an error"
            )


@checked(_check_options)
def build_loader(
    description: Description,
    /,
    *,
    rank: Count | None = None,
    world_size: Positive | None = None,
    workers: Decoders | None = None,
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
    """Start one rank's loader, which yields batches as dicts of tensors.

    It scans the data if no index of them is cached, and starts the workers. Use it in a `with`
    statement, or call `close()`, so that the workers end.

        with data.loader(workers=4, device="cuda") as loader:
            for batch in loader:
                ...

    Args:
        rank, world_size: both or neither. By default those of Ray Train, else of
            torch.distributed, else of the variables RANK and WORLD_SIZE, else 0 and 1.
        workers: number of decoders of this loader alone, 1 CPU each. (least, most): start with
            the least, and add decoders while the loop waits for batches. 0: do all work in this
            process, without Ray. Default: all loaders of this process that name neither
            `workers` nor `pool` share 2 decoders.
        device: where the tensors of a batch are.
        max_bytes: limit of the bytes in the object store for this loader. Default: this rank's
            share of 40 % of the node's store.
        prefetch: number of batches to make, and to copy to the device, in advance.
        pool: workers that this loader shares with others of this process, instead of `workers`.
        pin_memory: page-lock the host memory of batches. Default: True for a CUDA device.
        epochs: number of epochs the loop will run: nothing beyond the last one is read. Default: it
            may end after any epoch, so only the first batches of the next one are decoded before
            the loop begins it.
        uneven: allow a world size that does not divide the batch; ranks then differ by one row.
        after_copy: by field, a function of the tensor, called on the device after the copy
            (`images.Normalize`).
        start_timeout: seconds to wait for the cluster at `RAY_ADDRESS`, and again for the first
            decoder. Give an autoscaler the time that it takes to add a node.
        decode_timeout: seconds after which a decode task is ended with its worker and tried on
            another one, in halves, until the sample at fault is known. Tasks are sized to take 0.4
            seconds. Not used with `workers=0`.
        on_error: "raise" an error when its step is due, or "skip": another sample of the window
            replaces the bad one, with `__valid__` False. Time-outs, and mistakes in the
            description, are never skipped.
        max_errors: with "skip", the limit of bad samples. A whole number counts samples; a fraction
            such as 0.01 is the share of this rank's rows that are replacements, counted after 1,000
            rows. The run ends beyond the limit. Default: 0.05.
        quarantine: with "skip", a folder for the list of bad samples, one JSON Lines file per rank.
            Default: in the user's cache folder.
        image_backend: library that decodes images, the same for the whole run: "turbo"
            (libjpeg-turbo and a SIMD resizer; the default if both are installed) or "pillow". A
            state names it, and needs the same one.

    Returns:
        A `Loader`: iterable, with `state_dict()`, `load_state_dict()`, `stats()` and `close()`.

    Raises:
        ConfigError: the options, the description or the data do not fit together.
        DataError: the data cannot be read or scanned.
        WorkerError: no worker starts in `start_timeout` seconds.
    """
    from rayingest.trainer.device import resolve_device, resolve_pin
    from rayingest.trainer.loader import Loader
    from rayingest.trainer.prefetch import SlotPool

    features = [*description.features, *_used(on_error, epochs)]
    check_complete(features)
    resolve_pin(pin_memory, resolve_device(device))
    ranks = _find_ranks(rank, world_size)
    size = description.batching.size if description.batching else None
    if size is not None and Feature.SAMPLER not in features:
        check_ranks(size, ranks.rank, ranks.world_size, uneven)
    on_ray = workers != 0 or pool is not None
    if on_ray:
        from rayingest.execute.cluster.connection import connect

        with log_if_slow("connecting to Ray, or starting it"):
            connect(start_timeout)
    skip = on_error == "skip"
    stream, plan = description.build_stream(
        ranks, uneven=uneven, on_ray=on_ray, skip=skip, image_backend=image_backend
    )
    bad_samples = _quarantine(stream, quarantine, max_errors) if skip else None
    slots = SlotPool(resolve_pin(pin_memory, resolve_device(device)))
    source: BatchSource
    if on_ray:
        from rayingest.build.on_ray import Workers, build_source

        options = Workers(
            workers,
            pool,
            max_bytes,
            prefetch,
            0 if resolve_device(device).type == "cpu" else prefetch,
            epochs,
            start_timeout,
            decode_timeout,
        )
        source, watch = build_source(stream, plan, ranks, slots, options, bad_samples)
    else:
        watch = LoaderWatch()
        source = LocalSource(stream, max_bytes, bad_samples, watch.tick)
    return Loader(
        source,
        plan,
        device=device,
        prefetch=prefetch,
        slots=slots,
        pin_memory=pin_memory,
        epochs=epochs,
        after_copy=after_copy,
        watch=watch,
    )


def _find_ranks(rank: int | None, world_size: int | None) -> Ranks:
    """Return the ranks from the first place that names them. Raises ConfigError.

    The places are the arguments, Ray Train, torch.distributed, and RANK and WORLD_SIZE in the
    environment; without any, this process is rank 0 of 1.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError(
            f"rank={rank}, world_size={world_size}: one of them is missing; give both, or neither "
            "(both then come from Ray Train, torch.distributed or the environment)"
        )
    if rank is not None and world_size is not None:
        is_launched = os.environ.get("WORLD_SIZE") == str(world_size)
        return Ranks(rank, world_size, _local_world_size() if is_launched else None)
    return _of_ray_train() or _of_torch() or _of_environment()


def _of_ray_train() -> Ranks | None:
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        return Ranks(
            context.get_world_rank(), context.get_world_size(), context.get_local_world_size()
        )
    except RuntimeError:  # not inside a training worker
        return None


def _of_torch() -> Ranks | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Ranks(distributed.get_rank(), distributed.get_world_size(), _local_world_size())


def _of_environment() -> Ranks:
    try:
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        raise ConfigError(
            f"RANK={os.environ.get('RANK')!r}, WORLD_SIZE={os.environ.get('WORLD_SIZE')!r}: "
            "both must be whole numbers"
        ) from None
    return Ranks(rank, world_size, _local_world_size())


def _local_world_size() -> int | None:
    value = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(value) if value.isdigit() else None


def _used(on_error: str, epochs: int | None) -> list[Feature]:
    """Return the features that these options of a loader use."""
    used = {Feature.SKIP_ERRORS: on_error == "skip", Feature.EPOCHS: epochs is not None}
    return [Feature.LOADER, *(feature for feature, is_used in used.items() if is_used)]


def _quarantine(stream: Stream, folder: Folder | None, max_errors: float | None) -> Quarantine:
    """Return the list of bad samples of a rank, with its limit."""
    name = f"{stream.name}-rank{stream.planner.rank}"
    return Quarantine(folder, name, max_errors, stream.work.storage_options)
