"""Run a pipeline without a model at several settings; measure what each yields and costs.

Owns the measurement of points. A point that cannot be measured is a result too: it says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rayingest.api.data import Data, description_of
from rayingest.errors import IngestError
from rayingest.execute.cluster.pool import Pool
from rayingest.execute.cluster.resources import describe_cpus, total_cpus
from rayingest.monitor.diagnose import Diagnosis, diagnose
from rayingest.monitor.meter import Meter
from rayingest.monitor.trace import Trace
from rayingest.plan.figures.metrics import take_snapshot
from rayingest.trainer.loader import Loader

KNEE = 0.95
"""The smallest setting that reaches this share of the best rate is good enough."""
_WARM_BATCHES = 2
_LOOK_SECONDS = 0.05

AnyData = TypeVar("AnyData", bound=Data[Any])


@dataclass(frozen=True)
class Point:
    """Settings to measure. `batch`: samples of a global step; None: as described."""

    workers: int
    prefetch: int = 2
    pin_memory: bool | None = None
    batch: int | None = None

    def __str__(self) -> str:
        words = [f"{self.workers} worker(s)", f"prefetch {self.prefetch}"]
        words += [] if self.pin_memory is None else ["pinned" if self.pin_memory else "not pinned"]
        return ", ".join([*words, *([] if self.batch is None else [f"batch {self.batch}"])])

    def batched(self, data: AnyData) -> AnyData:
        """Return the data with this batch size."""
        description = description_of(data)
        if self.batch is None or description.batching is None:
            return data
        batching = replace(description.batching, size=self.batch)
        return type(data)(replace(description, batching=batching))


@dataclass(frozen=True)
class Trial:
    """How to measure a point: for `seconds`, with steps of `step` seconds.

    `options` go to the loader beside the point's own; decoders have `timeout` seconds to start.
    """

    seconds: float
    step: float
    options: dict[str, Any]
    timeout: float


@dataclass(frozen=True)
class Measured:
    """One run's figures.

    Seconds are per batch; `cpu` is the number of CPUs that this process and the workers kept busy;
    `memory_bytes` is their private memory, `store_bytes` the loader's use of the object store, both
    at their peak.
    """

    point: Point
    samples_per_second: float
    data_seconds: float
    copy_seconds: float
    step_seconds: float
    cpu: float
    memory_bytes: int
    store_bytes: int
    diagnosis: Diagnosis


@dataclass(frozen=True)
class NotMeasured:
    """A run that failed, and why."""

    point: Point
    why: str


Result = Measured | NotMeasured


def sweep(dataset: Data[Any], points: Iterable[Point], trial: Trial) -> Iterator[Result]:
    """Measure each point, ordered by workers, so that points of one number share a pool.

    No point is measured with fewer decoders than it asks for.
    """
    for workers, same in _by_workers(points):
        with Pool(workers=workers, start_timeout=trial.timeout) as pool:
            lack = wait_for_decoders(pool, trial.timeout)
            for point in same:
                yield NotMeasured(point, lack) if lack else measure(dataset, point, trial, pool)


def wait_for_decoders(pool: Pool, timeout: float) -> str:
    """Wait until all decoders run; return "", or the reason why they do not."""
    if pool.workers > (total := total_cpus()):
        return f"{pool.workers} decoders need {pool.workers} CPUs, and the cluster has {total}"
    pool.open(0, 1)
    deadline = time.monotonic() + timeout
    while (running := pool.count("decoder")) < pool.workers:
        if time.monotonic() > deadline:
            return (
                f"{running} of {pool.workers} decoders started in {timeout:g} s; {describe_cpus()}"
            )
        time.sleep(_LOOK_SECONDS)
    return ""


def measure(
    dataset: Data[Any], point: Point, trial: Trial, pool: Pool, trace: Trace | None = None
) -> Result:
    """Measure one point on a pool with its number of workers."""
    options = {
        **trial.options,
        "prefetch": point.prefetch,
        "pin_memory": point.pin_memory,
        "pool": pool,
    }

    def run() -> Measured:
        with point.batched(dataset).loader(**options) as loader:
            if trace is not None and loader.watch is not None:
                loader.watch.trace(trace.span)
            return run_loader(loader, point, trial, pool)

    return attempt(point, run)


def attempt(point: Point, run: Callable[[], Result]) -> Result:
    """Return what `run` returns, or NotMeasured for an error of this package or of the disk."""
    try:
        return run()
    except (IngestError, OSError) as error:
        return NotMeasured(point, " ".join(str(error).split()) or type(error).__name__)


def run_loader(loader: Loader, point: Point, trial: Trial, pool: Pool | None) -> Measured:
    """Measure a loader after its first batches."""
    batches = _endless(loader)
    for _ in range(_WARM_BATCHES):
        next(batches)
        time.sleep(trial.step)
    meter = Meter(pool)
    before, begun, rows = loader.figures(), time.monotonic(), 0
    while time.monotonic() - begun < trial.seconds:
        rows += len(next(batches)["__index__"])
        time.sleep(trial.step)
        meter.look()
    took = time.monotonic() - begun
    used, figures = meter.read(), loader.figures()
    seen = take_snapshot(before, figures, took)
    count = max(1.0, seen["batches"])
    return Measured(
        point,
        rows / took,
        seen["wait_seconds"] / count,
        (seen["assemble_seconds"] + seen["copy_seconds"]) / count,
        seen["step_seconds"] / count,
        used.cpu_seconds / took,
        used.memory_bytes,
        figures.get("peak_bytes", 0),
        diagnose(seen),
    )


def only_measured(results: Iterable[Result]) -> list[Measured]:
    """Return the results that were measured."""
    return [one for one in results if isinstance(one, Measured)]


def knee(results: Iterable[Result]) -> Measured:
    """Return the smallest point within 5 % of the best rate: fewest workers, then least prefetch.

    Raises ValueError without a measured point.
    """
    points = only_measured(results)
    enough = KNEE * max(one.samples_per_second for one in points)
    good = [one for one in points if one.samples_per_second >= enough]
    return min(
        good, key=lambda one: (one.point.workers, one.point.prefetch, bool(one.point.pin_memory))
    )


def _by_workers(points: Iterable[Point]) -> Iterator[tuple[int, list[Point]]]:
    chosen = list(points)
    for workers in sorted({point.workers for point in chosen}):
        yield workers, [point for point in chosen if point.workers == workers]


def _endless(loader: Loader) -> Iterator[dict[str, Any]]:
    while True:
        yield from loader
