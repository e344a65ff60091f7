"""What metrics cost: CPU time of the training process a batch, with them and without, in turns on one loader.

python jobs/bench_metrics.py
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import ray

import rayingest as ri
from rayingest.observe.watch import LoaderWatch
from rayingest.plan.durations import Durations

COUNTED_A_BATCH = 4
"""Its wait, its step, a read and a decode, at most, near enough."""


def main() -> None:
    """Print the medians with and without, what looking and counting cost, and their share."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--slices", type=int, default=40, help="with metrics, and as many without them")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each slice: a look is taken in each")
    options = parser.parse_args()
    ray.init("local", num_cpus=3, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
    slices: dict[bool, list[float]] = {True: [], False: []}
    tick, add = LoaderWatch.tick, Durations.add
    with tempfile.TemporaryDirectory() as name:
        lines = "".join(f'{{"i": {i}}}\n' for i in range(20_000))
        (Path(name) / "a.jsonl").write_text(lines)
        data = ri.read_json(f"{name}/a.jsonl", index=name, block_bytes=1 << 16).shuffle(1).batch(64)
        with data.loader(workers=2) as loader:
            batches = chain.from_iterable(repeat(loader))
            next(batches)
            for number in range(2 * options.slices):
                on = number % 4 in {0, 3}
                LoaderWatch.tick = tick if on else lambda self: None  # type: ignore[method-assign]
                Durations.add = add if on else lambda self, seconds: None  # type: ignore[method-assign]
                slices[on].append(cpu_a_batch(batches, options.seconds))
            Durations.add = add  # type: ignore[method-assign]
            look = cost_of_a_look(loader)
    ray.shutdown()
    with_, without = (1e3 * statistics.median(slices[on]) for on in (True, False))
    halves = [1e3 * statistics.median(slices[False][half::2]) for half in (0, 1)]
    counts = COUNTED_A_BATCH * cost_of_a_count()
    print(f"CPU of the training process a batch: {with_:.3f} ms with metrics, {without:.3f} ms without")
    print(f"without, every other slice: {halves[0]:.3f} ms and {halves[1]:.3f} ms: so much is noise")
    print(f"a look costs {1e3 * look:.3f} ms of CPU and is taken once a second: {look:.2%} of a CPU")
    print(f"counting a batch's durations costs {1e6 * counts:.2f} us: {1e3 * counts / without:.2%} of its CPU")
    print(f"together, where a CPU does nothing but batches: {look + 1e3 * counts / without:.2%}")


def cpu_a_batch(batches: Iterator[Any], seconds: float) -> float:
    """Seconds of this process's CPU, all its threads."""
    number, begun, deadline = 0, time.process_time(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        next(batches)
        number += 1
    return (time.process_time() - begun) / max(1, number)


def cost_of_a_count(times: int = 100_000) -> float:
    """Seconds of this thread's CPU."""
    durations = Durations()
    begun = time.thread_time()
    for _ in range(times):
        durations.add(0.02)
    return (time.thread_time() - begun) / times


def cost_of_a_look(loader: ri.Loader, times: int = 50) -> float:
    """Seconds of this thread's CPU, all figures told to Ray."""
    watch = loader.watch
    assert isinstance(watch, LoaderWatch)
    begun = time.thread_time()
    for _ in range(times):
        watch._look(loader.figures())
    return (time.thread_time() - begun) / times


if __name__ == "__main__":
    main()
