"""What metrics cost: CPU time of the training process a batch, with them and without, in turns on one pool.

python jobs/bench_metrics.py
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import ray

import rayingest as ri
from rayingest.observe.watch import LoaderWatch


def main() -> None:
    """Print the two medians, what one look costs, and its share."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    options = parser.parse_args()
    ray.init("local", num_cpus=3, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as name, ri.Pool(workers=2) as pool:
        lines = "".join(f'{{"i": {i}}}\n' for i in range(20_000))
        (Path(name) / "a.jsonl").write_text(lines)
        data = ri.read_json(f"{name}/a.jsonl", index=name, block_bytes=1 << 16).shuffle(1).batch(64)
        turns: dict[bool, list[float]] = {True: [], False: []}
        looks: list[float] = []
        tick = LoaderWatch.tick
        for _ in range(options.rounds):
            for on, found in turns.items():
                LoaderWatch.tick = tick if on else lambda self: None  # type: ignore[method-assign]
                with data.loader(pool=pool) as loader:
                    found.append(cpu_a_batch(loader, options.seconds))
                    looks += [cost_of_a_look(loader)] if on else []
    ray.shutdown()
    with_, without = (1e3 * statistics.median(turns[on]) for on in (True, False))
    look = statistics.median(looks)
    print(f"CPU of the training process a batch: {with_:.3f} ms with metrics, {without:.3f} ms without")
    print(f"a look costs {1e3 * look:.3f} ms of CPU and is taken once a second: {look:.2%} of a CPU")


def cpu_a_batch(loader: ri.Loader, seconds: float) -> float:
    """Seconds of this process's CPU, all its threads."""
    batches, begun, deadline = 0, 0.0, 0.0
    while not deadline or time.monotonic() < deadline:
        for _ in loader:
            if not deadline:  # the first batch is not counted
                begun, deadline, batches = time.process_time(), time.monotonic() + seconds, 0
            batches += 1
            if time.monotonic() > deadline:
                break
    return (time.process_time() - begun) / batches


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
