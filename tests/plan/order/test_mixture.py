"""Mixtures: proportions at every row, each source once through in its own time, at any step, on any
ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.errors import ConfigError
from rayingest.plan.order.interleave import MAX_CYCLE, NEVER, LevelInterleave, counts_of
from rayingest.plan.order.manifest import JoinedManifest
from rayingest.plan.order.mixed import MixedBatcher, RepeatedSource, plan, resolve, source_order
from rayingest.plan.order.mixture import Mixture, ShuffledInterleave
from rayingest.plan.order.planner import Planner, RankSlice
from rayingest.plan.order.subset import Subset, Take
from tests.support.plan_cases import divisors, manifest, same

Sample = tuple[int, int, int]
"""Source, which time through it, ordinal."""

WEIGHTS = st.lists(st.integers(0, 40) | st.sampled_from([1, 100]), min_size=1, max_size=7).filter(
    any
)


def farthest(source: np.ndarray, weights: Mapping[int, Sequence[int]]) -> Fraction:
    """How far any source ever is from its exact share of the rows so far."""
    unit = math.lcm(*map(sum, weights.values()))
    share = np.zeros((len(source), len(weights[0])), np.int64)
    for begin in sorted(weights):
        share[begin:] = np.array(weights[begin]) * (unit // sum(weights[begin]))
    had = np.eye(len(weights[0]), dtype=np.int64)[source] * unit
    return Fraction(int(abs((had - share).cumsum(axis=0)).max()), unit)


@given(WEIGHTS)
def test_every_prefix_is_in_proportion(weights: list[int]) -> None:
    """Less than one sample from exact after every row, and exact after every cycle."""
    counts = counts_of(weights)
    source, _ = LevelInterleave({0: counts}).at(0, 2 * sum(counts) + 5)
    assert farthest(source, {0: counts}) < 1
    for cycle in (1, 2):
        assert np.bincount(source[: cycle * sum(counts)], minlength=len(counts)).tolist() == [
            cycle * n for n in counts
        ]


@given(st.data())
def test_weights_that_change_lose_nothing(data: st.DataObject) -> None:
    """Across changes of weights too, unless these follow each other within a few rows."""
    size = data.draw(st.integers(1, 6))
    some = st.lists(st.integers(1, 20), min_size=size, max_size=size)
    begins = [0, *np.cumsum(data.draw(st.lists(st.integers(20, 90), max_size=3))).tolist()]
    weights = {begin: data.draw(some) for begin in begins}
    assert farthest(LevelInterleave(weights).at(0, 300)[0], weights) < 1


@settings(max_examples=40)
@given(st.data())
def test_rows_are_found_from_anywhere(data: st.DataObject) -> None:
    """Any stretch of rows, and the row of any sample, are those of the whole; far away too."""
    size = data.draw(st.integers(1, 5))
    some = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    level = LevelInterleave(
        {0: data.draw(some), **data.draw(st.dictionaries(st.integers(1, 80), some, max_size=3))}
    )
    turns = (
        level
        if data.draw(st.booleans())
        else ShuffledInterleave(level, data.draw(st.integers(1, 40)), 7)
    )
    begin = data.draw(st.sampled_from([0, 3, 10**12]))
    source, number = turns.at(begin, begin + 200)
    for first, last in data.draw(
        st.lists(st.tuples(st.integers(0, 100), st.integers(101, 200)), max_size=3)
    ):
        again = turns.at(begin + first, begin + last)
        assert [part.tolist() for part in again] == [
            source[first:last].tolist(),
            number[first:last].tolist(),
        ]
    for one in set(source.tolist()):
        rows = np.flatnonzero(source == one)
        assert turns.row(one, number[rows]).tolist() == (begin + rows).tolist()
        assert np.diff(number[rows]).tolist() == [1] * (len(rows) - 1)


def test_weights_are_taken_as_they_are_written() -> None:
    """In the smallest whole numbers; rounded, and never to none, where these would be too many."""
    assert counts_of([0.7, 0.2, 0.1]) == (7, 2, 1)
    assert counts_of([1 / 3, 1 / 3, 1 / 3]) == (1, 1, 1)
    assert counts_of([50, 0, 150]) == (1, 0, 3)
    rounded = counts_of([1e-9, 0.123456789, 3])
    assert rounded[0] == 1
    assert abs(sum(rounded) - MAX_CYCLE) <= 2
    assert abs(rounded[1] / sum(rounded) - 0.123456789 / 3.123456790) < 2 / MAX_CYCLE


def test_a_source_of_no_weight_never_comes() -> None:
    level = LevelInterleave({0: (1, 1), 10: (1, 0)})
    assert level.row(1, np.array([4, 5])).tolist()[1:] == [NEVER]
    assert not level.at(10, 1000)[0].any()


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 5), st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_mixtures_of_mixtures_keep_both_proportions(
    outer: int, inner: int, sizes: list[int]
) -> None:
    """The outer one's among all rows, the inner one's among its own; each source's samples in a
    row.
    """
    inside = Mixture(LevelInterleave({0: (inner, 2)}), sizes[:2], "all")
    mixture = Mixture(LevelInterleave({0: (3, outer)}), [sizes[2], inside], "first")
    source, number = mixture.at(0, 400)
    assert farthest((source > 0).astype(int), {0: (3, outer)}) < 1
    assert farthest(source[source > 0] - 1, {0: (inner, 2)}) < 1
    for one in range(mixture.sources):
        rows = np.flatnonzero(source == one)
        assert number[rows].tolist() == list(range(len(rows)))
        assert mixture.row(one, number[rows]).tolist() == rows.tolist()
    of_inner = max(np.flatnonzero(source == one)[sizes[one - 1] - 1] for one in (1, 2))
    assert mixture.rows == 1 + min(np.flatnonzero(source == 0)[sizes[2] - 1], of_inner)


def made(
    sources: Sequence[Sequence[int]],
    weights: Mapping[int, Sequence[int]],
    rank: int = 0,
    world_size: int = 1,
    *,
    batch: int = 6,
    until: str | int = "first",
    partial: str = "drop",
    seed: int | None = 5,
    window: int | None = 8,
    lanes: int | None = None,
    stretch: int = 0,
    taken: int = 1 << 40,
) -> Planner:
    """A rank's planner of a mixture of sources with blocks of so many samples each."""
    parts = [manifest(counts) for counts in sources]
    subsets = [Subset.whole(part).through([Take(taken)]) for part in parts]
    how = {"samples_per_step": batch / len(parts), "share": 1.0, "window": window}
    orders = [
        source_order(
            subset,
            seed=None if seed is None else seed + i,
            lanes=lanes and min(lanes, subset.num_samples),
            **how,
        )
        for i, subset in enumerate(subsets)
    ]
    level = LevelInterleave(weights)
    turns = ShuffledInterleave(level, stretch, seed or 0) if stretch else level
    mixture = Mixture(turns, [subset.num_samples for subset in subsets], until)
    share = [1 / len(parts)] * len(parts)
    order = resolve(mixture, orders, share, batch=batch, partial=partial, seed=seed)
    each = [RepeatedSource(*of) for of in zip(subsets, orders, strict=True)]
    ranks = RankSlice(rank, world_size, batch % world_size > 0)
    data = JoinedManifest.of(parts)
    return plan(data, mixture, each, order, ranks, last_change=level.last_change)


def batcher(planner: Planner) -> MixedBatcher:
    assert isinstance(planner.batcher, MixedBatcher)
    return planner.batcher


def samples(planner: Planner, epoch: int, step: int) -> list[tuple[Sample, bool]]:
    """A rank's rows of a step, and whether each is valid."""
    samples = planner.step_samples(epoch, step)
    assert isinstance(planner.manifest, JoinedManifest)
    assert samples.source is not None
    assert samples.passes is not None
    part = [
        planner.manifest.source_of(int(planner.manifest.shard[block])) for block in samples.block
    ]
    assert part == samples.source.tolist()
    first = np.array(planner.manifest.first_block)[samples.source]
    for source, block, row, ordinal in zip(
        part, samples.block - first, samples.row, samples.ordinal, strict=True
    ):
        assert planner.manifest.parts[source].first_ordinal[block] + row == ordinal
    columns = (column.tolist() for column in (samples.source, samples.passes, samples.ordinal))
    rows = zip(zip(*columns, strict=True), samples.valid.tolist(), strict=True)
    return list(rows)[: samples.rows]


SOURCES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4)


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[list[list[int]], dict[int, list[int]], dict[str, object]]:
    sources = draw(SOURCES)
    some = st.lists(st.integers(1, 5), min_size=len(sources), max_size=len(sources))
    partial = draw(st.sampled_from(["drop", "drop", "pad", "short"]))
    weights = {0: draw(some)}
    batch = draw(st.integers(1, 12))
    if partial == "drop" and draw(st.booleans()):
        weights[batch * draw(st.integers(1, 9))] = draw(some)
    until = draw(st.sampled_from(["all", draw(st.integers(batch, 60))]))
    how = {
        "batch": batch,
        "partial": partial,
        "until": until if partial != "drop" else draw(st.integers(batch, 60)),
        "seed": draw(st.sampled_from([None, 3, 3, 2**63])),
        "window": draw(st.integers(1, 30)),
        "lanes": draw(st.sampled_from([None, 1, 2, 3, 8])),
        "stretch": draw(st.sampled_from([0, 0, 13])),
        "taken": draw(st.sampled_from([1 << 40, 7])),
    }
    return sources, weights, how


@settings(max_examples=40)
@given(mixtures())
def test_every_source_is_once_through_in_each_of_its_passes(case: tuple) -> None:
    """Each pass has each sample once, pass after pass; the mixture sets the rows of each source."""
    sources, weights, how = case
    planner = made(sources, weights, **how)
    epochs = 3
    rows = [
        row
        for epoch in range(epochs)
        for step in range(planner.steps_in(epoch))
        for row in samples(planner, epoch, step)
    ]
    taken = [sample for sample, valid in rows if valid]
    assert len(taken) == epochs * planner.order.samples
    wanted, _ = batcher(planner).mixture.at(0, len(taken))
    assert [source for source, _, _ in taken] == wanted.tolist()
    for source, count in Counter(wanted.tolist()).items():
        size = batcher(planner).sources[source].subset.num_samples
        own = Counter((cycle, ordinal) for one, cycle, ordinal in taken if one == source)
        assert max(own.values()) == 1
        assert Counter(cycle for cycle, _ in own) == {
            cycle: min(size, count - cycle * size) for cycle in range(-(-count // size))
        }


@settings(max_examples=25)
@given(mixtures(), st.data())
def test_ranks_share_the_same_global_batches(case: tuple, data: st.DataObject) -> None:
    """Any number of them; a step is the same wherever one comes from, and in a run of steps."""
    sources, weights, how = case
    whole = made(sources, weights, **how)
    world_size = data.draw(st.sampled_from([*divisors(whole.order.batch), 5]))
    ranks = [made(sources, weights, rank, world_size, **how) for rank in range(world_size)]
    for epoch in (0, 2):
        steps = range(whole.steps_in(epoch))
        assert [
            [row for rank in ranks for row in samples(rank, epoch, step)] for step in steps
        ] == [samples(whole, epoch, step) for step in steps]
    step = data.draw(st.integers(0, whole.steps_in(0) - 1))
    count = data.draw(st.integers(1, 5))
    for rank in ranks[:2]:
        for one in rank.run(2, step, count):
            assert same(
                one, made(sources, weights, rank.rank, world_size, **how).step_samples(2, one.step)
            )


@settings(max_examples=20)
@given(mixtures())
def test_blocks_are_kept_as_long_as_they_are_needed(case: tuple) -> None:
    """Nothing of a window is taken at its `expires` or later, and something just before, unless the
    window was left.
    """
    sources, weights, how = case
    planner = made(sources, weights, **how)
    steps = [(epoch, step) for epoch in range(3) for step in range(planner.steps_in(epoch))]
    walked = [planner.step_samples(*position) for position in steps]
    sizes = [subset.num_samples for subset in planner.subsets]
    first = np.cumsum([0, *sizes])
    for at, samples in enumerate(walked):
        until = samples.expires - samples.step + at
        assert (until > at).all()
        for row, (begin, end) in enumerate(
            zip(samples.window_begin, samples.window_end, strict=True)
        ):
            order = batcher(planner).sources[samples.source[row]].order
            window = order.window_steps if order.seed is not None else order.samples
            if (
                order.lanes > 1
                or (begin - first[samples.source[row]]) % window
                or end - begin < window
            ):
                continue  # what it is permuted in is not what stands in for it
            for place, later in enumerate(walked[at:], at):
                mine = (
                    (later.source == samples.source[row])
                    & (later.passes == samples.passes[row])
                    & later.valid
                )
                if order.seed is None:
                    mine &= later.block == samples.block[row]
                if (mine & (later.position >= begin) & (later.position < end)).any():
                    assert place < until[row]


def test_ranks_read_their_own_lanes() -> None:
    """With as many lanes as the data suggests, few blocks are read by more than one rank or two."""
    sources = [[8] * 400, [8] * 300, [8] * 50]
    how = {"batch": 256, "window": 512, "lanes": 64}
    ranks = [made(sources, {0: (13, 10, 2)}, rank, 8, **how) for rank in range(8)]
    reads = set()
    for rank in ranks:
        for step in range(rank.steps_in(0)):
            samples = rank.step_samples(0, step)
            reads |= {(rank.rank, block) for block in samples.block.tolist()}
    blocks = len({block for _, block in reads})
    assert len(reads) / blocks < 1.6


def test_less_than_a_batch_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="a pass over the mixture has 3 samples, less than one global batch of 6"
    ):
        made([[2], [9]], {0: (1, 1)})


@pytest.mark.parametrize("samples", [8, 9, 11, 15, 16, 61])
def test_a_repeated_source_draws_each_sample_once_a_pass(samples: int) -> None:
    """Also where the last step of a pass takes from two lanes and more, but not from all."""
    subset = Subset.whole(manifest([3] * (samples // 3) + [samples % 3]))
    of_source = source_order(subset, samples_per_step=8, share=1.0, seed=5, window=16, lanes=8)
    source = RepeatedSource(subset, of_source)
    drawn = source.draw(np.arange(3 * samples))
    assert drawn.passes.tolist() == [p for p in range(3) for _ in range(samples)]
    for number in range(3):
        assert sorted(drawn.position[drawn.passes == number].tolist()) == [*range(samples)]
