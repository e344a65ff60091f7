"""Measure how much of padded batches is padding, with buckets and without.

    python -m benchmarks.padding [--samples 200000] [--window 8192] [--batch 256] [--ranks 8]

Reads nothing: it draws lengths with a long tail (log-normal, median 150, sigma 1, at most 8,192)
and plans an epoch. A rank's batch is padded to its longest sample.

`imbalance` is the longest rank's padded batch over the mean rank's, averaged over steps. With
--samples 100000 on two busy cores:

     lanes     order  padding  imbalance  ms a step
         1     naive    81.9%       1.98       2.77
         1  bucketed    29.8%       1.03       2.25
         8     naive    81.9%       2.01       2.08
         8  bucketed    29.4%       1.11       4.18
        32     naive    81.9%       1.99       5.06
        32  bucketed    34.3%       1.13       8.70

The rest is in the longest band: every batch has as many rows, so the tail's spread is padded.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from rayingest.plan.order import window
from rayingest.plan.order.manifest import Manifest, ShardBlocks
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.subset import Subset

BLOCK = 256


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each number of lanes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--window", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=8)
    args = parser.parse_args(argv)
    data = uniform(args.samples // BLOCK)
    lengths = (
        np.random.default_rng(0)
        .lognormal(np.log(150), 1, data.num_samples)
        .clip(1, 8192)
        .astype(np.uint16)
    )
    print(f"{'lanes':>6} {'order':>9} {'padding':>8} {'imbalance':>10} {'ms a step':>10}")
    for lanes in (1, 8, 32):
        order = Order.resolve(data, batch=args.batch, seed=1, window=args.window, lanes=lanes)
        for name, by in (("naive", None), ("bucketed", lengths)):
            padding, imbalance, seconds = measured(
                window.plan(Subset.whole(data), order, lengths=by), lengths, args.ranks
            )
            print(
                f"{lanes:>6} {name:>9} {padding:>8.1%} {imbalance:>10.2f} {1000 * seconds:>10.2f}"
            )


def measured(planner: Planner, lengths: np.ndarray, ranks: int) -> tuple[float, float, float]:
    """Return the share of padding, the longest rank's batch to the mean rank's, and seconds per
    step.
    """
    taken = padded = 0
    imbalance = []
    begun = time.perf_counter()
    for step in range(planner.steps_per_epoch):
        of_ranks = (
            lengths[planner.step_samples(0, step).ordinal].reshape(ranks, -1).astype(np.int64)
        )
        longest = of_ranks.max(1)
        taken += int(of_ranks.sum())
        padded += int(longest.sum()) * of_ranks.shape[1]
        imbalance.append(longest.max() / longest.mean())
    return (
        1 - taken / padded,
        float(np.mean(imbalance)),
        (time.perf_counter() - begun) / planner.steps_per_epoch,
    )


def uniform(blocks: int) -> Manifest:
    """Return a manifest of one shard of equal blocks."""
    begin = np.arange(blocks, dtype=np.int64)
    samples = np.full(blocks, BLOCK, np.int64)
    return Manifest.join(
        "mem://", ["a"], [blocks], [""], [ShardBlocks(begin, begin + 1, samples, samples * 600)]
    )


if __name__ == "__main__":
    main()
