"""Running a pipeline without a model: over several settings, and with parts of its work left out.

Owns the measuring. What it costs to have data is the difference between runs: as it lies there (cold), from local files
that were just read (cached), and one made batch handed out again and again (synthetic), which needs neither storage
nor decoding.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from rayingest.cluster.pool import Pool
from rayingest.dataset import Dataset
from rayingest.observe.diagnose import Diagnosis, diagnose
from rayingest.observe.trace import Trace
from rayingest.plan.metrics import between
from rayingest.plan.protocols import Batch
from rayingest.storage.local_files import local_path
from rayingest.trainer.loader import Loader
from rayingest.trainer.slots import SlotPool

KNEE = 0.95
"""Of the best rate: the least setting that gives so much is good enough."""
_WARM_BATCHES = 2
_STEPS = 1 << 30
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is where Ray puts its object store
_CACHED_BYTES = 256 << 20


@dataclass(frozen=True)
class Point:
    """Settings to measure; `batch` counts the samples of a global step, None leaves it as described."""

    workers: int
    prefetch: int = 2
    pin_memory: bool | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Measured:
    """One run's figures: seconds are a batch's, `cpu` is CPUs busy on this machine, bytes are the most that was seen
    beyond what was in use before.
    """

    point: Point
    samples_per_second: float
    data_seconds: float
    copy_seconds: float
    step_seconds: float
    cpu: float
    memory_bytes: int
    shared_bytes: int
    diagnosis: Diagnosis


@dataclass(frozen=True)
class Split:
    """Seconds a batch: of storage, of decoding, and of all else (copies, the step itself)."""

    storage: float
    decode: float
    rest: float


def sweep(
    dataset: Dataset, points: Iterable[Point], seconds: float, step: float, options: dict[str, Any], pool_timeout: float
) -> Iterator[Measured]:
    """Each point measured for so many seconds, in order of workers, so that one pool serves all of a number."""
    for workers, same in _by_workers(points):
        with Pool(workers=workers, start_timeout=pool_timeout) as pool:
            for point in same:
                yield measure(dataset, point, seconds, step, {**options, "pool": pool})


def differential(
    dataset: Dataset,
    point: Point,
    seconds: float,
    step: float,
    options: dict[str, Any],
    pool_timeout: float,
    trace: Trace | None = None,
) -> Iterator[Measured]:
    """Three runs at one point: cold, which is traced, cached and synthetic."""
    with Pool(workers=point.workers, start_timeout=pool_timeout) as pool:
        pooled = {**options, "pool": pool}
        forget_files(dataset)
        yield measure(replace(dataset, cache=None), point, seconds, step, pooled, trace)
        with cached(dataset) as local:
            yield measure(local, point, seconds, step, pooled)
    yield synthetic(dataset, point, seconds, step, options)


def measure(
    dataset: Dataset, point: Point, seconds: float, step: float, options: dict[str, Any], trace: Trace | None = None
) -> Measured:
    """One point; `step` seconds stand for a model."""
    if point.batch is not None and dataset.batching is not None:
        dataset = replace(dataset, batching=replace(dataset.batching, size=point.batch))
    options = {**options, "prefetch": point.prefetch, "pin_memory": point.pin_memory}
    memory, shared = _in_use()
    with dataset.loader(**options) as loader:
        if trace is not None and loader.watch is not None:
            loader.watch.trace(trace.span)
        return _measured(loader, point, seconds, step, memory, shared)


def synthetic(dataset: Dataset, point: Point, seconds: float, step: float, options: dict[str, Any]) -> Measured:
    """One batch of the data, made once, and handed out for so many seconds."""
    made = {name: value for name, value in options.items() if name not in {"pool", "epochs", "device", "after_copy"}}
    with dataset.loader(**{**made, "workers": 0, "device": "cpu", "pin_memory": None}) as loader:
        values = next(iter(loader))
    columns = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
    again = {name: options[name] for name in ("device", "after_copy") if name in options}
    memory, shared = _in_use()
    source = _Again(Batch(0, 0, columns))
    slots = SlotPool(bool(point.pin_memory))
    with Loader(source, _View(), prefetch=point.prefetch, slots=slots, **again) as loader:
        return _measured(loader, point, seconds, step, memory, shared)


def split(cold: Measured, cached: Measured, made: Measured) -> Split:
    """What a batch costs in a run as it is, by what the other runs do without; never less than nothing."""
    times = [one.data_seconds + one.step_seconds for one in (cold, cached, made)]
    return Split(max(0.0, times[0] - times[1]), max(0.0, times[1] - times[2]), times[2])


def knee(measured: Iterable[Measured]) -> Measured:
    """The point with the fewest workers, and then the least of all else, that is as good as the best, nearly."""
    points = list(measured)
    enough = KNEE * max(one.samples_per_second for one in points)
    good = [one for one in points if one.samples_per_second >= enough]
    return min(good, key=lambda one: (one.point.workers, one.point.prefetch, bool(one.point.pin_memory)))


def forget_files(dataset: Dataset) -> None:
    """Ask the system to forget what it keeps of local shards, so that the next run reads them from where they lie."""
    for url in _urls(dataset):
        path = local_path(url)
        if path is not None:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@contextmanager
def cached(dataset: Dataset, limit: int = _CACHED_BYTES) -> Iterator[Dataset]:
    """The same description over copies of the first shards in a local folder, up to so many bytes of them."""
    folder = Path(tempfile.mkdtemp(prefix="rayingest-probe-"))
    storage, size = dataset.source_work.storage, 0
    copies: list[Path] = []
    try:
        for url, nbytes in _urls(dataset).items():
            if copies and size + nbytes > limit:
                break
            copies.append(folder / f"{len(copies):06d}-{Path(url.partition('?')[0]).name}")
            copies[-1].write_bytes(storage.read_all(url))
            size += nbytes
        index = str(folder / "index.rayingest")
        yield replace(dataset, urls=tuple(map(str, copies)), index=index, storage_options={}, allow_pipe=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _urls(dataset: Dataset) -> dict[str, int]:
    listing = dataset.index_cache().listing
    return {listing.url(i): int(listing.sizes[i]) for i in range(len(listing))}


def _by_workers(points: Iterable[Point]) -> Iterator[tuple[int, list[Point]]]:
    chosen = list(points)
    for workers in sorted({point.workers for point in chosen}):
        yield workers, [point for point in chosen if point.workers == workers]


def _measured(loader: Loader, point: Point, seconds: float, step: float, memory: int, shared: int) -> Measured:
    batches = _endless(loader)
    for _ in range(_WARM_BATCHES):
        next(batches)
        time.sleep(step)
    psutil.cpu_percent()
    before, begun, rows, used = loader.figures(), time.monotonic(), 0, _in_use()
    while time.monotonic() - begun < seconds:
        rows += len(next(batches)["__index__"])
        time.sleep(step)
        now = _in_use()
        used = max(used[0], now[0]), max(used[1], now[1])
    took = time.monotonic() - begun
    seen = between(before, loader.figures(), took)
    count = max(1.0, seen["batches"])
    return Measured(
        point,
        rows / took,
        seen["wait_seconds"] / count,
        (seen["assemble_seconds"] + seen["copy_seconds"]) / count,
        seen["step_seconds"] / count,
        psutil.cpu_percent() / 100 * (os.cpu_count() or 1),
        max(0, used[0] - memory),
        max(0, used[1] - shared),
        diagnose(seen),
    )


def _endless(loader: Loader) -> Iterator[dict[str, Any]]:
    while True:
        yield from loader


def _in_use() -> tuple[int, int]:
    """Bytes of memory, and of /dev/shm, in use on this machine."""
    shared = shutil.disk_usage(_SHARED_MEMORY).used if _SHARED_MEMORY.exists() else 0
    return int(psutil.virtual_memory().used), shared


class _Again:
    """A source of one batch, again and again."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._at = (0, 0)

    def start(self, epoch: int, step: int) -> None:
        self._at = (epoch, step)

    def get(self) -> Batch:
        epoch, step = self._at
        self._at = (epoch, step + 1) if step + 1 < _STEPS else (epoch + 1, 0)
        return replace(self._batch, epoch=epoch, step=step)

    def ready(self) -> bool:
        return True

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


class _View:
    """A plan without end, of one rank."""

    rank, world_size = 0, 1

    def steps_in(self, epoch: int) -> int:
        return _STEPS

    def reached(self, epoch: int, step: int) -> None:
        pass

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        return {"epoch": epoch, "step": step}

    def position(self, state: dict[str, Any]) -> tuple[int, int]:
        return state["epoch"], state["step"]
