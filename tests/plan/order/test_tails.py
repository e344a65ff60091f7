"""Ranks' slices of the global batch."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.errors import ConfigError
from rayingest.plan.order.order import Lanes
from rayingest.plan.order.tails import bounds, check_ranks
from rayingest.plan.order.window import lane_rows
from tests.support import plan_reference
from tests.support.plan_cases import order, rules


def test_a_world_size_that_does_not_divide_names_those_that_do() -> None:
    """And the option that allows it."""
    with pytest.raises(
        ConfigError, match=r"global batch of 48 .* 5 ranks.*: 1, 2, 3, 4, 6, 8; .*uneven=True"
    ):
        check_ranks(48, 0, 5, False)
    with pytest.raises(ConfigError, match=r"global batch of 4 .* 8 ranks"):
        check_ranks(4, 0, 8, False)


def test_uneven_takes_any_world_size() -> None:
    """More ranks than rows, too."""
    check_ranks(48, 4, 5, True)
    check_ranks(4, 7, 8, True)
    check_ranks(48, 7, 8, False)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 4), (4, 4), (0, 0), (0, -1)])
def test_a_rank_outside_its_world_is_refused(rank: int, world_size: int) -> None:
    """Whether uneven or not, with both numbers named."""
    for uneven in (False, True):
        with pytest.raises(ConfigError, match=f"rank {rank} of world size {world_size}"):
            check_ranks(12, rank, world_size, uneven)


@given(st.integers(0, 10**12), st.integers(1, 200))
def test_bounds_tile_the_rows(rows: int, world_size: int) -> None:
    """Ranks in order, no gap, no overlap, sizes that differ by at most one."""
    slices = [bounds(rows, rank, world_size) for rank in range(world_size)]
    assert slices[0][0] == 0
    assert slices[-1][1] == rows
    assert all(a[1] == b[0] for a, b in pairwise(slices))
    sizes = {end - begin for begin, end in slices}
    assert max(sizes) - min(sizes) <= 1


def rows_of(lanes: Lanes, step: int, rank: int = 0, world_size: int = 1) -> list[np.ndarray]:
    """Lane, position and validity of a rank's rows of a step."""
    begin, end = bounds(lanes.steps.rows_of(step), rank, world_size)
    return list(lane_rows(lanes, step, np.arange(begin, end)))


@settings(max_examples=60)
@given(rules(), st.integers(1, 40))
def test_ranks_rows_tile_every_step(case: plan_reference.Rules, world_size: int) -> None:
    """The ranks' rows are those of one rank, in order; positions lie in their lanes."""
    lanes = Lanes(order(case))
    for step in {0, lanes.steps.count // 2, lanes.steps.count - 1}:
        whole = rows_of(lanes, step)
        ranks = [rows_of(lanes, step, rank, world_size) for rank in range(world_size)]
        for column, parts in zip(whole, zip(*ranks, strict=True), strict=True):
            assert np.array_equal(np.concatenate(parts), column)
        lane, position, valid = whole
        assert lane.dtype == position.dtype == np.int64
        assert valid.dtype == np.bool_
        assert (np.diff(lane) >= 0).all()
        assert (position < lanes.samples[lane]).all()
        assert [len(rows[0]) for rows in ranks] == [
            e - b for b, e in (bounds(len(lane), r, world_size) for r in range(world_size))
        ]


@settings(max_examples=60)
@given(rules())
def test_a_full_step_takes_the_same_stretch_of_every_lane(case: plan_reference.Rules) -> None:
    """Step s takes positions [s*b, (s+1)*b), every row valid."""
    lanes = Lanes(order(case))
    for step in range(lanes.steps.full):
        lane, position, valid = rows_of(lanes, step)
        stretch = list(range(step * lanes.rows, (step + 1) * lanes.rows))
        assert position.reshape(case.lanes, -1).tolist() == [stretch] * case.lanes
        assert lane.tolist() == sorted(list(range(case.lanes)) * lanes.rows)
        assert valid.all()
