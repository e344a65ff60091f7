"""Measure what metrics cost: CPU time of the training process per batch, with and without them.

    python -m benchmarks.metrics

Both take turns on one loader. Then it measures a look at figures that have all grown, with the work
of one node and of many, and the share of a CPU. Exits with status 1 if looks and counts take more
than `MOST` of a CPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import ray

import rayingest as ri
from rayingest.monitor.watch import LoaderWatch
from rayingest.plan.figures.histogram import Histogram
from rayingest.plan.figures.metrics import COUNTERS, DURATIONS, NODES, Figures

MOST = 0.01
COUNTED_A_BATCH = 4
"""Its wait, its step, a read and a decode, at most, near enough."""


def main() -> int:
    """Print the medians, the cost of looks and counts and their share; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--slices", type=int, default=40, help="with metrics, and as many without them"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="of each slice: a look is taken in each"
    )
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[1, 32], help="from which a look has figures"
    )
    options = parser.parse_args()
    ray.init(
        "local",
        num_cpus=3,
        object_store_memory=200 << 20,
        include_dashboard=False,
        log_to_driver=False,
    )
    slices: dict[bool, list[float]] = {True: [], False: []}
    tick, add = LoaderWatch.tick, Histogram.add
    with tempfile.TemporaryDirectory() as name:
        lines = "".join(f'{{"i": {i}}}\n' for i in range(20_000))
        (Path(name) / "a.jsonl").write_text(lines)
        data = (
            ri.read_json(f"{name}/a.jsonl", index=name, block_bytes=1 << 16)
            .shuffle(seed=1)
            .batch(64)
        )
        with data.loader(workers=2) as loader:
            batches = chain.from_iterable(repeat(loader))
            next(batches)
            for number in range(2 * options.slices):
                on = number % 4 in {0, 3}
                LoaderWatch.tick = tick if on else lambda self: None  # type: ignore[method-assign]
                Histogram.add = add if on else _count_nothing  # type: ignore[method-assign]
                slices[on].append(cpu_a_batch(batches, options.seconds))
            Histogram.add = add  # type: ignore[method-assign]
            looks = {nodes: cost_of_a_look(loader, nodes) for nodes in options.nodes}
    ray.shutdown()
    with_, without = (1e3 * statistics.median(slices[on]) for on in (True, False))
    halves = [1e3 * statistics.median(slices[False][half::2]) for half in (0, 1)]
    counts = COUNTED_A_BATCH * cost_of_a_count()
    print(
        f"CPU of the training process per batch: {with_:.3f} ms with metrics, "
        f"{without:.3f} ms without"
    )
    print(
        f"without, every other slice: {halves[0]:.3f} ms and {halves[1]:.3f} ms: so much is noise"
    )
    print(
        f"counting a batch's durations costs {1e6 * counts:.2f} us: "
        f"{1e3 * counts / without:.2%} of its CPU"
    )
    shares = {nodes: look + 1e3 * counts / without for nodes, look in looks.items()}
    for nodes, look in looks.items():
        print(f"{nodes} node(s): a look costs {1e3 * look:.3f} ms of CPU; looks once a second and")
        print(f"    counts cost {shares[nodes]:.2%} of a CPU that only makes batches")
    return 0 if max(shares.values()) <= MOST else 1


def _count_nothing(histogram: Histogram, seconds: float) -> None:
    """Replace `Histogram.add`."""


def cpu_a_batch(batches: Iterator[Any], seconds: float) -> float:
    """Return seconds of this process's CPU per batch, over all threads."""
    number, begun, deadline = 0, time.process_time(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        next(batches)
        number += 1
    return (time.process_time() - begun) / max(1, number)


def cost_of_a_count(times: int = 100_000) -> float:
    """Return seconds of this thread's CPU to count a batch."""
    durations = Histogram()
    begun = time.thread_time()
    for _ in range(times):
        durations.add(0.02)
    return (time.thread_time() - begun) / times


def cost_of_a_look(loader: ri.Loader, nodes: int, times: int = 50) -> float:
    """Return seconds of this thread's CPU to export all figures, each of which has grown."""
    watch = loader.watch
    assert isinstance(watch, LoaderWatch)
    spent = 0.0
    for number in range(times):
        begun = time.thread_time()
        figures = loader.figures()
        spent += time.thread_time() - begun
        figures = grown(figures, number, nodes)
        begun = time.thread_time()
        watch._look(figures)
        spent += time.thread_time() - begun
    return spent / times


def grown(figures: Figures, by: int, nodes: int) -> Figures:
    """Return figures that have all grown, with the figures of their first node on `nodes` nodes."""
    more = _more(figures, by)
    first = next(iter(figures[NODES].values()))
    return {**more, NODES: {f"{node:08x}": _more(first, by) for node in range(nodes)}}


def _more(figures: Figures, by: int) -> dict[str, Any]:
    counted = {name: value + by for name, value in figures.items() if name in COUNTERS}
    durations = {
        name: [count + by for count in figures[name]] for name in DURATIONS if name in figures
    }
    return {**figures, **counted, **durations}


if __name__ == "__main__":
    sys.exit(main())
