"""Token budgets: batches of similar lengths that hold no more than they may, as many for every
rank.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayingest.errors import ConfigError, StateError
from rayingest.plan.order.packed import plan, resolve
from rayingest.plan.order.planner import Planner, RankSlice
from rayingest.plan.order.state import StateCodec
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import Subset
from rayingest.plan.order.token_budget import Budget
from tests.support.plan_cases import manifest, uniform

LENGTHS = st.lists(st.integers(0, 24), min_size=1, max_size=60)


@given(LENGTHS, st.sampled_from([1, 4]), st.integers(0, 5))
def test_batches_hold_no_more_than_they_may(
    lengths: list[int], multiple_of: int, more: int
) -> None:
    """Every sample once; padded to the longest, rounded up, at most the budget; as many batches as
    are asked for.
    """
    budget, of = Budget(24, 1, multiple_of), np.array(lengths)
    count = min(budget.count(of) + more, budget.most(of))
    bins = budget.bins(of, count)
    assert len(bins) == count
    assert sorted(bins.sample.tolist()) == list(range(len(lengths)))
    for begin, end in zip(bins.begins[:-1], bins.begins[1:], strict=True):
        longest = max(lengths[sample] for sample in bins.sample[begin:end])
        assert end > begin
        assert (end - begin) * -(-longest // multiple_of) * multiple_of <= 24
    if not more:
        bands = [
            sorted(lengths[i] for i in bins.sample[b:e])
            for b, e in zip(bins.begins, bins.begins[1:], strict=False)
        ]
        assert all(a[0] >= b[-1] for a, b in itertools.pairwise(bands))


def ranks(
    counts: tuple[int, ...], world_size: int, seed: int | None = 4, partial: str = "drop"
) -> list[Planner]:
    data = manifest(counts)
    lengths = np.random.default_rng(2).integers(0, 20, data.num_samples)
    lengths[0] = 9
    how = {"batch": world_size, "partial": partial, "seed": seed, "window": 30}
    subset, budget = Subset.whole(data), Budget(40, world_size)
    order = resolve(subset, lengths, budget, **how)  # type: ignore[arg-type]
    return [
        plan(subset, order, budget, lengths, RankSlice(rank, world_size))
        for rank in range(world_size)
    ]


COUNTS = st.lists(st.integers(1, 9), min_size=3, max_size=12).map(tuple)


@given(COUNTS, st.integers(1, 5), st.none() | st.integers(0, 99), st.integers(0, 2))
def test_every_rank_has_as_many_batches_and_nothing_is_left(
    counts: tuple[int, ...], world_size: int, seed: int | None, epoch: int
) -> None:
    """Each sample once over all ranks, in at least one row a batch; asked for in any order, by
    another planner too.
    """
    counts = (6, *counts)
    planners = ranks(counts, world_size, seed)
    assert len({planner.steps_in(epoch) for planner in planners}) == 1
    seen: list[int] = []
    for step in reversed(range(planners[0].steps_in(epoch))):
        samples = [planner.step_samples(epoch, step) for planner in planners]
        for one in samples:
            assert 0 < one.rows == len(one.ordinal) == int(one.valid.sum())
            assert (one.expires > step).all()
            assert one.size == 1
            seen += one.ordinal.tolist()
        again = ranks(counts, world_size, seed)[-1].step_samples(epoch, step)
        assert again.ordinal.tolist() == samples[-1].ordinal.tolist()
    assert sorted(seen) == list(range(sum(counts)))


@given(st.integers(1, 6), st.integers(2, 9), st.sampled_from(["pad", "short"]))
def test_fewer_samples_than_ranks_are_a_tail(samples: int, world_size: int, partial: str) -> None:
    """Where batches cannot be split any more, ranks without one repeat others, flagged, or have no
    rows.
    """
    planners = ranks((samples,), world_size, partial=partial)
    (steps,) = {planner.steps_in(0) for planner in planners}
    found: list[StepSamples] = [
        planner.step_samples(0, step) for step in range(steps) for planner in planners
    ]
    valid = Counter(
        o
        for p in found
        for o, good in zip(p.ordinal[: p.rows], p.valid[: p.rows], strict=True)
        if good
    )
    assert valid == Counter(range(samples))
    assert all((p.rows > 0) == (partial == "pad" or p.valid[: p.rows].any()) for p in found)
    assert all(len(p.block) for p in found)


def test_little_is_padded() -> None:
    """Less than 10 % with lengths that have a long tail, in windows of 8,192."""
    data = uniform(128, 256, 1_000)
    lengths = (
        np.random.default_rng(0)
        .lognormal(np.log(150), 1, data.num_samples)
        .clip(1, 8192)
        .astype(np.uint16)
    )
    budget = Budget(16_384, 4)
    order = resolve(
        Subset.whole(data), lengths, budget, batch=4, partial="drop", seed=1, window=8192
    )
    planner = plan(Subset.whole(data), order, budget, lengths, RankSlice(2, 4))
    padded = taken = 0
    for step in range(planner.steps_in(0)):
        own = lengths[planner.step_samples(0, step).ordinal].astype(np.int64)
        padded, taken = padded + len(own) * int(own.max()), taken + int(own.sum())
        assert len(own) * own.max() <= budget.limit
    assert 1 - taken / padded < 0.1


def test_what_cannot_be_is_refused() -> None:
    """Samples that no batch can hold, and a state of another number of ranks."""
    data = Subset.whole(manifest([4]))
    with pytest.raises(
        ConfigError,
        match=r"sample 2 is 9 long \(padded to a multiple of 8\), more than max_tokens=12",
    ):
        resolve(data, np.array([1, 2, 9, 3]), Budget(12, 1, 8), batch=1, partial="drop")
    with pytest.raises(
        ConfigError, match="4 batches for a rank are less than one global batch of 5"
    ):
        ranks((4,), 5)
    codecs = [
        StateCodec({"order": planners[0].identity}, "c", planners[0].steps_in)
        for planners in (ranks((9, 9), 1), ranks((9, 9), 2))
    ]
    state = json.loads(json.dumps(codecs[0].state(0, 1)))
    assert codecs[0].position(state) == (0, 1)
    with pytest.raises(
        StateError, match=r"has 'at most 40 padded tokens, planned for 1 rank.*planned for 2 rank"
    ):
        codecs[1].position(state)
    with pytest.raises(StateError, match="is not a position in epochs of"):
        codecs[0].position({**state, "step": 1 + codecs[0].steps_in(0)})
