"""Small manifests and orders for the tests of the plan, and a walk over an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rayingest.plan.order import window
from rayingest.plan.order.manifest import Manifest, ShardBlocks
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import Planner, RankSlice
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import Subset
from rayingest.plan.order.window import Lanes
from tests.support.plan_reference import Rules


def shard_blocks(counts: Sequence[int], bytes_each: int = 100) -> ShardBlocks:
    """Blocks of these sample counts, whose begin and end count bytes."""
    samples = np.array(counts, np.int64)
    ends = np.cumsum(samples * bytes_each)
    return ShardBlocks(ends - samples * bytes_each, ends, samples, samples * bytes_each)


def manifest(counts: Sequence[int], bytes_each: int = 100) -> Manifest:
    """One shard of blocks of these sample counts."""
    return Manifest.join(
        "mem://", ["a"], [sum(counts) * bytes_each], [""], [shard_blocks(counts, bytes_each)]
    )


def uniform(blocks: int, samples_each: int, bytes_each: int) -> Manifest:
    """One shard of equal blocks, made without a Python object a block."""
    begin = np.arange(blocks, dtype=np.int64)
    samples = np.full(blocks, samples_each, np.int64)
    columns = ShardBlocks(begin, begin + 1, samples, samples * bytes_each)
    return Manifest.join("mem://", ["a"], [blocks], [""], [columns])


def order(rules: Rules) -> Order:
    """The package's order for these rules."""
    return Order.resolve(
        manifest(rules.counts),
        batch=rules.batch,
        partial=rules.partial,
        seed=rules.seed,
        window=rules.window,
        lanes=rules.lanes,
    )


def window_planner(
    data: Manifest | Subset,
    order: Order,
    rank: int = 0,
    world_size: int = 1,
    uneven: bool = False,
    **how: Any,
) -> Planner:
    """A rank's planner of each sample once a pass; `how` as in `window.plan`."""
    subset = data if isinstance(data, Subset) else Subset.whole(data)
    return window.plan(subset, order, RankSlice(rank, world_size, uneven), **how)


def lanes(planner: Planner) -> Lanes:
    """The lanes of a planner's order."""
    return Lanes(planner.order)


def planners(rules: Rules, world_size: int) -> list[Planner]:
    """A planner for every rank; uneven where it must be."""
    data, resolved = manifest(rules.counts), order(rules)
    uneven = rules.batch % world_size > 0
    return [window_planner(data, resolved, rank, world_size, uneven) for rank in range(world_size)]


def divisors(number: int) -> list[int]:
    """All of them, 1 and the number included."""
    return [d for d in range(1, number + 1) if number % d == 0]


def rows(samples: StepSamples) -> list[tuple[int, int, bool]]:
    """(block, row, valid) of the rows that are in the batch."""
    columns = zip(samples.block.tolist(), samples.row.tolist(), samples.valid.tolist(), strict=True)
    return list(columns)[: samples.rows]


def global_batch(ranks: Iterable[Planner], epoch: int, step: int) -> list[tuple[int, int, bool]]:
    """The ranks' rows of one step, one rank after the other."""
    return [row for planner in ranks for row in rows(planner.step_samples(epoch, step))]


def same(a: StepSamples, b: StepSamples) -> bool:
    """Whether two samples are equal, every array of them."""
    return all(np.array_equal(value, vars(b)[name]) for name, value in vars(a).items())


@st.composite
def rules(
    draw: st.DrawFn,
    partials: Sequence[str] = ("drop", "pad", "short"),
    file_order: bool = True,
    max_batch: int = 36,
) -> Rules:
    """Any order of a small data set: few or many blocks, any lanes that divide the batch, any
    window, any seed.
    """
    counts = tuple(draw(st.lists(st.integers(1, 20), min_size=1, max_size=24)))
    samples = sum(counts)
    partial = draw(st.sampled_from(partials))
    batch = draw(st.integers(1, min(max_batch, samples) if partial == "drop" else max_batch))
    if file_order and not draw(st.integers(0, 5)):
        return Rules(counts, batch, partial, None, 1, 1)
    seed = draw(st.integers(0, 99) | st.integers(-(2**70), 2**70))
    lanes = draw(st.sampled_from([d for d in divisors(batch) if d <= samples]))
    window = draw(st.integers(1, 4 * batch) | st.integers(1, 2 * samples))
    return Rules(counts, batch, partial, seed, lanes, window)
