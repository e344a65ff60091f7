"""Lanes share the sequence, windows tile the lanes, and steps take equal parts of the lanes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import bounds
from rayingest.plan.order.window import Lanes, lane_rows
from tests.support import plan_reference
from tests.support.plan_cases import manifest, order, rules, uniform, window_planner


@pytest.mark.parametrize("lanes", [1, 2, 8, 64])
def test_first_windows_end_in_turn(lanes: int) -> None:
    """Lane l shortens its first window of k steps by a hash of l.

    It omits floor(k * ((l * 2654435769) mod 2^32) / 2^32) steps.
    """
    made = Order.resolve(
        uniform(2_000, 1_000, 60_000), batch=2_048, seed=0, lanes=lanes, window=64 * 2_048
    )
    cut = [64 * (lane * 2_654_435_769 % 2**32) // 2**32 for lane in range(lanes)]
    assert Lanes(made).first_window_cut.tolist() == cut
    assert len(set(cut)) >= lanes * 3 // 4
    assert max(cut) < made.window_steps


def test_first_windows_are_whole_where_a_window_covers_the_lane() -> None:
    """Lane by lane: of lanes of 7 and 8 samples, a window of 7 covers the first."""
    data = manifest([15])
    made = Order.resolve(data, batch=2, seed=0, lanes=2, window=14)
    assert Lanes(made).samples.tolist() == [7, 8]
    assert Lanes(made).first_window_cut.tolist() == [0, 4]
    covered = Order.resolve(data, batch=2, seed=0, lanes=2, window=16)
    assert Lanes(covered).first_window_cut.tolist() == [0, 0]


@settings(max_examples=60)
@given(rules(file_order=False))
def test_lanes_share_the_sequence(case: plan_reference.Rules) -> None:
    """Lane l owns [floor(l*N/L), floor((l+1)*N/L)): no gap, no overlap, sizes that differ by at
    most one.
    """
    made = order(case)
    bounds = [plan_reference.lane_bounds(case, lane) for lane in range(case.lanes)]
    assert Lanes(made).begin.tolist() == [begin for begin, _ in bounds] + [case.samples]
    assert Lanes(made).samples.tolist() == [end - begin for begin, end in bounds]


@settings(max_examples=60)
@given(rules(file_order=False))
def test_windows_tile_every_lane(case: plan_reference.Rules) -> None:
    """Each step that a lane has samples for lies in the window that the rules give, remainders
    joined.
    """
    made = order(case)
    for lane in range(case.lanes):
        windows = plan_reference.windows(case, lane)
        for step in range(-(-int(Lanes(made).samples[lane]) // Lanes(made).rows)):
            got = [int(value[0]) for value in Lanes(made).windows(np.array([lane]), step)]
            at = step * Lanes(made).rows
            nth = next((i for i, (begin, end) in enumerate(windows) if begin <= at < end))
            assert got == [nth, *windows[nth]]


@settings(max_examples=60)
@given(rules(file_order=False))
def test_windows_begin_and_end_between_steps(case: plan_reference.Rules) -> None:
    """Every window but a lane's last ends at a whole step, and none that has another before it is
    shorter than one.
    """
    for lane in range(case.lanes):
        windows = plan_reference.windows(case, lane)
        assert all(end % case.lane_batch == 0 for _, end in windows[:-1])
        assert all(end - begin >= case.lane_batch for begin, end in windows[1:])


def test_large_numbers_do_not_overflow() -> None:
    """Lane bounds of 10^15 samples over 4,096 lanes are exact."""
    made = Order(10**15 + 7, 1 << 20, "drop", 0, 4_096, 16)
    assert Lanes(made).begin.tolist() == [lane * made.samples // 4_096 for lane in range(4_097)]


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


@pytest.mark.parametrize("seed", [None, 3])
def test_all_full_steps_of_a_pass_are_planned_at_once(seed: int | None) -> None:
    """A run has as many steps as are asked for, up to the short last step, which is alone."""
    data = manifest([50, 35])
    planner = window_planner(data, Order.resolve(data, batch=8, partial="short", seed=seed))
    assert len(planner.run(0, 2, 5)) == 5
    assert len(planner.run(0, 0, 99)) == 10
    assert len(planner.run(0, 10, 99)) == 1
