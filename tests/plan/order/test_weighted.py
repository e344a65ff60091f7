"""Weighted draws: each sample as often as its weight says, at any step, on any ranks, with windows
as ever.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.errors import ConfigError
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import RankSlice
from rayingest.plan.order.subset import Skip, Subset, Take
from rayingest.plan.order.weighted import Resampling, Weights, plan
from tests.support.plan_cases import divisors, global_batch, manifest, same, uniform


@st.composite
def resamplings(draw: st.DrawFn) -> tuple[Resampling, Weights]:
    """Draw a resampling of a subset, with weights of very different sizes; and its weights."""
    data = manifest(draw(st.lists(st.integers(1, 9), min_size=1, max_size=9)))
    limits = draw(st.sampled_from([(), (Take(7),), (Skip(1),)])) if data.num_samples > 1 else ()
    subset = Subset.whole(data).through(limits)
    some = st.sampled_from([0.0, 1.0, 1e-6, 3.7, 1000.0]) | st.floats(0, 5)
    weights = np.array(draw(st.lists(some, min_size=data.num_samples, max_size=data.num_samples)))
    places = np.concatenate(list(subset.ordinals()))
    weights[places[0]] += 1
    stratum = draw(st.sampled_from([None, np.arange(data.num_samples) % 3]))
    return Resampling.of(
        subset, Weights(weights, stratum), draw(st.sampled_from([None, 1, 10, 40]))
    ), Weights(weights, stratum)


@settings(max_examples=60)
@given(resamplings(), st.integers(0, 9))
def test_a_sample_comes_as_often_as_its_share(
    case: tuple[Resampling, Weights], pass_number: int
) -> None:
    """Its share of a pass's draws, rounded up or down; draws of a sample side by side, numbered."""
    by, weights = case
    ordinal, repeat = everything(by, 5, pass_number)
    assert ordinal == sorted(ordinal)
    there = np.concatenate(list(by.subset.ordinals()))
    for one, count in Counter(ordinal).items():
        assert one in there
        assert sorted(repeat[np.array(ordinal) == one].tolist()) == list(range(count))
    share = weights.weight[there] / weights.weight[there].sum() * by.draws
    times = np.array([ordinal.count(one) for one in there])
    assert (abs(times - share) < 1 + 1e-6).all()
    if weights.stratum is not None:
        of = weights.stratum[there]
        assert (abs(np.bincount(of, times) - np.bincount(of, share)) < 1 + 1e-6).all()


def everything(by: Resampling, seed: int, pass_number: int) -> tuple[list[int], np.ndarray]:
    """Ordinals of all draws of a pass in file order, and which repeat of its sample each is."""
    draws = by.draw(seed, pass_number)
    block = np.repeat(np.arange(by.subset.num_blocks), draws.samples)
    assert len(block) == by.draws
    row, repeat = draws.locate(block, np.concatenate([np.arange(count) for count in draws.samples]))
    return (by.subset.manifest.first_ordinal[block] + row).tolist(), repeat


def test_frequencies_pass_a_chi_square_test() -> None:
    """Over many passes the counts fit the weights as independent draws would, or better; passes
    differ.
    """
    data = manifest([5, 3, 12])
    weights = np.random.default_rng(1).random(20) ** 3
    by = Resampling.of(Subset.whole(data), Weights(weights), 30)
    planner = plan(by, Order.resolve(by, batch=10, seed=3, window=30))
    counts = np.zeros(20)
    passes = [
        np.concatenate([planner.step_samples(e, s).ordinal for s in range(3)]) for e in range(200)
    ]
    for ordinals in passes:
        counts += np.bincount(ordinals, minlength=20)
    expected = weights / weights.sum() * 30 * len(passes)
    assert (
        (counts - expected) ** 2 / expected
    ).sum() < 30.1  # 95 % of chi-square with 19 degrees of freedom
    assert len({tuple(sorted(ordinals.tolist())) for ordinals in passes}) > 10
    assert len({tuple(ordinals.tolist()) for ordinals in passes}) == len(passes)


@settings(max_examples=25)
@given(resamplings(), st.data())
def test_any_ranks_and_any_step_give_the_same(
    case: tuple[Resampling, Weights], data: st.DataObject
) -> None:
    """A global batch is what its ranks have, and a run of steps what its steps are; each draw once
    a pass.
    """
    by, _ = case
    batch = data.draw(st.integers(1, 8))
    lanes = data.draw(st.sampled_from([d for d in divisors(batch) if d <= by.draws]))
    partial = data.draw(st.sampled_from(["pad", "short"]))
    order = Order.resolve(
        by, batch=batch, partial=partial, seed=1, window=data.draw(st.integers(1, 20)), lanes=lanes
    )
    world_size = data.draw(st.sampled_from(divisors(batch)))
    ranks = [plan(by, order, RankSlice(rank, world_size)) for rank in range(world_size)]
    whole = plan(by, order)
    rows = []
    for step in range(whole.steps_per_epoch):
        together = global_batch([whole], 2, step)
        assert global_batch(ranks, 2, step) == together
        rows += [(block, row) for block, row, valid in together if valid]
    first = by.subset.manifest.first_ordinal
    assert Counter(first[block] + row for block, row in rows) == Counter(everything(by, 1, 2)[0])
    for samples in ranks[0].run(2, 0, 5):
        assert same(
            samples, plan(by, order, RankSlice(0, world_size)).step_samples(2, samples.step)
        )


def test_repeats_have_random_numbers_of_their_own() -> None:
    """The first time a sample comes in a pass has those that it would have anyway."""
    by = Resampling.of(Subset.whole(manifest([2])), Weights(np.array([3.0, 1.0])), 8)
    samples = plan(by, Order.resolve(by, batch=8, seed=3, window=8)).step_samples(1, 0)
    passes = list(zip(samples.ordinal.tolist(), samples.passes.tolist(), strict=True))
    assert sorted(passes) == [(0, 1 + r * 2**40) for r in range(6)] + [
        (1, 1 + r * 2**40) for r in range(2)
    ]


def test_a_great_many_draws_are_counted_exactly() -> None:
    """Though they are found by a quotient: as many as whole numbers say."""
    subset = Subset.whole(uniform(30, 1000, 100))
    by = Resampling.of(subset, Weights(np.random.default_rng(0).random(30_000)), 2**31 - 1)
    offset, length = 123_456_789_012, int(by.ends[-1])
    before = np.cumsum(by.times(offset)).astype(object)
    ends = by.ends.astype(object)
    assert (((before - 1) * length + offset) // by.draws < ends).all()
    assert ((before * length + offset) // by.draws >= ends)[:-1].all()


def test_a_place_on_the_line_is_as_long_as_the_weight() -> None:
    """The line has 2**52 units; a sample without weight has none, a tiny one at least 1."""
    subset = Subset.whole(manifest([4]))
    line = Resampling.of(subset, Weights(np.array([0.0, 1.0, 0.0, 3.0])), None)
    assert line.ends.tolist() == [0, 1 << 50, 1 << 50, 1 << 52]
    assert line.draws == line.num_samples == 4
    line = Resampling.of(subset, Weights(np.array([1e-30, 0.0, 1.0, 1e-30])), 9)
    assert line.ends.tolist() == [1, 1, (1 << 52) + 1, (1 << 52) + 2]
    assert line.total_bytes == subset.total_bytes * 9 // 4


def test_nothing_to_draw_by_is_refused() -> None:
    subset = Subset.whole(manifest([3]))
    with pytest.raises(ConfigError, match="the weights of 3 samples sum to 0"):
        Resampling.of(subset, Weights(np.zeros(3)), None)
    with pytest.raises(ConfigError, match="sum to inf"):
        Resampling.of(subset, Weights(np.array([1.0, np.inf, 1.0])), None)
    with pytest.raises(ConfigError, match="sum to 3e-310"):
        Resampling.of(subset, Weights(np.full(3, 1e-310)), None)
    assert Resampling.of(subset, Weights(np.full(3, 1e300)), None).times(0).tolist() == [1, 1, 1]
    with pytest.raises(ConfigError, match="are too many"):
        Resampling.of(subset, Weights(np.ones(3)), 2**31)
