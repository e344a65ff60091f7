"""Buckets: similar lengths in the same step, and nothing of what is promised lost."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.window import band_turns, sort_into_bands
from tests.support import plan_cases
from tests.support.plan_cases import (
    divisors,
    global_batch,
    manifest,
    rules,
    same,
    uniform,
    window_planner,
)
from tests.support.plan_reference import Rules

SHORT = st.integers(0, 5)


def planner(case: Rules, rank: int, world_size: int, longest: int) -> Planner:
    lengths = np.random.default_rng(longest).integers(0, longest + 1, case.samples)
    return window_planner(
        manifest(case.counts), plan_cases.order(case), rank, world_size, lengths=lengths
    )


@given(st.lists(SHORT, max_size=40), st.integers(1, 6), st.integers(0, 99))
def test_steps_are_bands_of_lengths_in_turn(lengths: list[int], rows: int, seed: int) -> None:
    """Every sample once; a step of a lower turn has no longer one; in a step they keep their order,
    the rest too.
    """
    steps = len(lengths) // rows
    turn = band_turns(seed, steps, max(1, steps), seed, 0)
    taken = sort_into_bands(np.array(lengths, np.int64), rows, turn)
    assert sorted(taken.tolist()) == list(range(len(lengths)))
    bands = [taken[i * rows : (i + 1) * rows].tolist() for i in np.argsort(turn)]
    assert [sorted(lengths[i] for i in band) for band in bands] == [
        sorted(lengths[: steps * rows])[i * rows : (i + 1) * rows] for i in range(steps)
    ]
    assert all(band == sorted(band) for band in bands)
    assert taken[steps * rows :].tolist() == list(range(steps * rows, len(lengths)))


@settings(max_examples=60)
@given(
    rules(partials=["pad", "short"], file_order=False),
    st.sampled_from([0, 1, 10**6]),
    st.integers(0, 9),
)
def test_each_sample_once_on_every_world_size_from_any_step(
    case: Rules, epoch: int, longest: int
) -> None:
    """In a valid row; ranks together see the same global batches; a planner asked for a step first
    gives the same.
    """
    alone = planner(case, 0, 1, longest)
    batches = [global_batch([alone], epoch, step) for step in range(alone.steps_per_epoch)]
    valid = Counter(row[:2] for batch in batches for row in batch if row[2])
    assert valid == Counter(
        (block, row) for block, count in enumerate(case.counts) for row in range(count)
    )
    for world_size in divisors(case.batch):
        ranks = [planner(case, rank, world_size, longest) for rank in range(world_size)]
        assert [global_batch(ranks, epoch, step) for step in range(len(batches))] == batches
    for step in range(len(batches)):
        assert same(
            planner(case, 0, 1, longest).step_samples(epoch, step), alone.step_samples(epoch, step)
        )


@settings(max_examples=40)
@given(rules(partials=["short"], file_order=False), st.integers(0, 3))
def test_samples_stay_in_their_windows(case: Rules, epoch: int) -> None:
    """Buckets change neither the windows of each step, nor the steps at which they expire."""
    plain, bucketed = (
        planner(case, 0, 1, 9),
        window_planner(manifest(case.counts), plan_cases.order(case)),
    )
    found: list[list[set[tuple[int, int]]]] = []
    for one in (plain, bucketed):
        samples = [one.step_samples(epoch, step) for step in range(one.steps_per_epoch)]
        found.append(
            [set(zip(p.window_begin.tolist(), p.expires.tolist(), strict=True)) for p in samples]
        )
    assert found[0] == found[1]


@pytest.mark.parametrize(("lanes", "most"), [(1, 0.32), (32, 0.4)])
def test_a_long_tail_is_padded_little(lanes: int, most: float) -> None:
    """On 8 ranks and windows of 8,192: a half of the padding and less, however lanes are staggered;
    in a new order.
    """
    data = uniform(200, 200, 60_000)
    lengths = np.exp(np.random.default_rng(0).normal(5, 1, data.num_samples)).astype(np.uint32)
    order = Order.resolve(data, batch=256, seed=1, window=8192, lanes=lanes)

    def padding(lengths_of: np.ndarray | None, epoch: int) -> tuple[float, list[int]]:
        longest, taken = [], 0
        for step in range(order.samples // order.batch):
            ordinal = Planner.step_samples(planners[lengths_of is not None], epoch, step).ordinal
            of_ranks = lengths[ordinal].reshape(8, -1)
            taken += int(of_ranks.sum())
            longest += of_ranks.max(1).tolist()
        return 1 - taken / (32 * sum(longest)), longest

    planners = [window_planner(data, order), window_planner(data, order, lengths=lengths)]
    naive, _ = padding(None, 0)
    less, first = padding(lengths, 0)
    assert less < most
    assert naive > 2 * most
    assert first != padding(lengths, 1)[1]
