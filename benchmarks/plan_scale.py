"""Measure what planning costs one rank at 10^6 blocks and 10^9 samples.

    python -m benchmarks.plan_scale

For each world size, in CPU time: seconds until an epoch's first step is planned (order, block
permutation, first windows), milliseconds per step afterwards, over changes of windows, and the
memory that stays.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.rows import positive
from rayingest.plan.order import window
from rayingest.plan.order.manifest import Manifest, ShardBlocks
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import RankSlice
from rayingest.plan.order.subset import Subset

SAMPLE_BYTES = 60_000
LEAST_ROWS = 16
"""Of a rank's step: the global batch grows with the world size from where this is reached."""


@dataclass(frozen=True)
class Cost:
    """One world size's figures in CPU time; `grown` and `peak` are MiB above the start."""

    world_size: int
    batch: int
    lanes: int
    epoch_seconds: float
    grown: float
    peak: float
    median_ms: float
    longest_ms: float


def made_up(
    blocks: int, samples_each: int, shards: int, sample_bytes: int = SAMPLE_BYTES
) -> Manifest:
    """Return a manifest of equal blocks in equal shards, without data."""
    each = blocks // shards
    begin = np.arange(each, dtype=np.int64) * samples_each * sample_bytes
    samples = np.full(each, samples_each, np.int64)
    shard = ShardBlocks(begin, begin + samples_each * sample_bytes, samples, samples * sample_bytes)
    names = [f"{number:07d}.tar" for number in range(shards)]
    sizes = [int(shard.end[-1])] * shards
    return Manifest.join("mem://", names, sizes, [""] * shards, [shard] * shards)


def measure(data: Manifest, world_size: int, batch: int, steps: int, epoch: int) -> Cost:
    """Plan an epoch's first step and `steps` more at four places, for the middle rank."""
    before, peak_before = resident_mib(), peak_mib()
    begun = time.process_time()
    order = Order.resolve(data, batch=batch, seed=1)
    ranks = RankSlice(world_size // 2, world_size)
    planner = window.plan(Subset.whole(data), order, ranks)
    planner.step_samples(epoch, 0)
    epoch_seconds = time.process_time() - begun
    times = []
    for place in tqdm(range(4), desc=f"{world_size} ranks", leave=False):
        first = place * (planner.steps_per_epoch - steps) // 4 + 1
        planner.step_samples(epoch, first - 1)
        for step in range(first, first + steps // 4):
            begun = time.process_time()
            planner.step_samples(epoch, step)
            times.append(1e3 * (time.process_time() - begun))
    grown, peak = resident_mib() - before, peak_mib() - peak_before
    return Cost(
        world_size,
        batch,
        order.lanes,
        epoch_seconds,
        grown,
        peak,
        statistics.median(times),
        max(times),
    )


def resident_mib() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def peak_mib() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 10)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--samples-each", type=int, default=1_000, help="samples of a block")
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument(
        "--batch", type=int, default=2_048, help="samples of a global step, at least"
    )
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[1, 64, 4_096])
    parser.add_argument("--steps", type=positive, default=2_000, help="steps to plan")
    args = parser.parse_args(argv)
    begun, before = time.perf_counter(), resident_mib()
    data = made_up(args.blocks, args.samples_each, args.shards)
    print(
        f"{data.num_blocks:,} blocks, {data.num_samples:,} samples, {len(data.paths):,} shards: "
        f"the manifest takes "
        f"{resident_mib() - before:.0f} MiB, made up in {time.perf_counter() - begun:.1f} s"
    )
    print(
        "ranks   batch  lanes  first step of an epoch  memory stays (peak)  a step, median  longest"
    )
    for epoch, world_size in enumerate(args.world_sizes):
        batch = max(args.batch, LEAST_ROWS * world_size)
        cost = measure(data, world_size, batch, args.steps, epoch)
        print(
            f"{cost.world_size:5d} {cost.batch:7d} {cost.lanes:6d} {cost.epoch_seconds:21.2f} s "
            f"{cost.grown:10.0f} ({cost.peak:.0f}) MiB {cost.median_ms:12.3f} ms "
            f"{cost.longest_ms:8.2f} ms",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
