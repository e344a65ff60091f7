"""Stand-ins: a pure function of the plan, of the sample's own window, the same on every rank and at
every time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.errors import DataError
from rayingest.plan.order import replacements
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.replacements import FilledStep, Known, candidates, distances
from rayingest.plan.order.window import Lanes
from tests.support.plan_cases import divisors, manifest, planners, rules, window_planner
from tests.support.plan_reference import Rules
from tests.support.skipping import expected_rows

BAD = DataError("bad")


def alone(counts: tuple[int, ...] = (7, 9, 5, 11, 8), **options: Any) -> Planner:
    """One rank's planner of a small data set, in two windows an epoch unless told otherwise."""
    data = manifest(counts)
    return window_planner(
        data, Order.resolve(data, **{"batch": 5, "seed": 3, "window": 20, "lanes": 1, **options})
    )


@given(size=st.integers(1, 300), key=st.integers(0, 2**64 - 1))
def test_every_other_sample_of_a_window_is_a_candidate_and_none_is_the_sample_itself(
    size: int, key: int
) -> None:
    """Distances stay inside the window, and cover it."""
    seen = list(distances(size, key))
    assert set(seen) == set(range(1, size))
    assert len(seen) <= size + 10


def test_the_first_candidates_are_near_and_then_twice_as_far_each_time() -> None:
    """So a damaged stretch of any length is left behind in few tries, and blocks in use are met
    first.
    """
    seen = distances(1 << 20, 5)
    for octave in range(16):
        assert 8 << octave <= next(seen) < 16 << octave


@settings(max_examples=60)
@given(rules(), st.sampled_from([0, 3]), st.data())
def test_candidates_are_the_samples_of_the_rows_own_window(
    case: Rules, epoch: int, data: st.DataObject
) -> None:
    """All around it, the sample itself aside; in file order, those of all the data."""
    (planner,) = planners(case, 1)
    samples = planner.step_samples(epoch, data.draw(st.integers(0, planner.steps_per_epoch - 1)))
    row = data.draw(st.integers(0, len(samples.block) - 1))
    begin, end = samples.window_begin[row], samples.window_end[row]
    own = set(planner.sequence.locate(epoch, np.arange(begin, end)).ordinal.tolist())
    assert samples.ordinal[row] in own
    found = list(candidates(planner, samples, row))
    assert {ordinal for _, _, ordinal, _ in found} == own - {int(samples.ordinal[row])}
    for block, row_in_block, ordinal, until in found:
        assert planner.manifest.first_ordinal[block] + row_in_block == ordinal
        assert samples.step < until <= planner.steps_per_epoch
        assert case.seed is None or until == samples.expires[row]


@settings(max_examples=60)
@given(rules(file_order=False), st.data())
def test_a_window_at_a_lanes_end_is_made_whole_with_a_part_of_its_neighbour(
    case: Rules, data: st.DataObject
) -> None:
    """Else one unreadable block could take all of it. All others are as they are."""
    (planner,) = planners(case, 1)
    order, lanes = planner.order, Lanes(planner.order)
    lane = np.array([data.draw(st.integers(0, order.lanes - 1))])
    step = data.draw(st.integers(0, planner.steps_per_epoch - 1))
    samples = planner.step_samples(0, step)
    row = int(lane[0]) * lanes.rows
    if row >= samples.rows or not samples.valid[row] or step >= lanes.steps.full:
        return
    _, begin, end = (
        int(array[0]) + int(lanes.begin[lane[0]]) for array in lanes.windows(lane, step)
    )
    lane_begin, lane_end = lanes.begin[lane[0] : lane[0] + 2].tolist()
    whole = order.window_steps * lanes.rows
    around_begin, around_end = int(samples.window_begin[row]), int(samples.window_end[row])
    assert lane_begin <= around_begin <= begin < end <= around_end <= lane_end
    assert around_end - around_begin == max(end - begin, min(whole, lane_end - lane_begin))


@settings(max_examples=40)
@given(rules(), st.data())
def test_ranks_of_any_world_size_get_the_same_stand_ins(case: Rules, data: st.DataObject) -> None:
    """Joined over ranks, the rows of every world size are those of one."""
    (planner,) = planners(case, 1)
    step = data.draw(st.integers(0, planner.steps_per_epoch - 1))
    ordinals = planner.step_samples(0, step).ordinal.tolist()
    bad = set(ordinals[: len(ordinals) // 2])
    try:
        whole = expected_rows(planner, step, bad, set())
    except StopIteration:
        return  # no good sample is left in some window
    for world_size in divisors(case.batch):
        parts = [expected_rows(rank, step, bad, set()) for rank in planners(case, world_size)]
        assert [row for part in parts for row in part] == whole


def test_epochs_and_seeds_choose_other_stand_ins() -> None:
    """The choice is keyed."""

    def chosen(planner: Planner, epoch: int) -> int:
        step = next(
            s for s in range(planner.steps_per_epoch) if 3 in planner.step_samples(epoch, s).ordinal
        )
        samples = planner.step_samples(epoch, step)
        return next(candidates(planner, samples, samples.ordinal.tolist().index(3)))[2]

    assert len({chosen(alone(seed=7), epoch) for epoch in range(6)}) > 2
    assert len({chosen(alone(seed=seed), 0) for seed in range(6)}) > 2


def test_a_row_is_filled_by_the_first_good_candidate_and_flagged() -> None:
    """The plan's own samples stay as they are; what was wrong with the own sample is kept, whatever
    comes later.
    """
    planner = alone()
    samples = planner.step_samples(0, 2)
    step = FilledStep(planner, samples, Known())
    order = list(candidates(planner, samples, 3))
    for candidate in order[:4]:
        assert step.fill(3, BAD if candidate is order[0] else DataError("another")) == candidate[3]
        assert (step.samples.block[3], step.samples.row[3], step.samples.ordinal[3]) == candidate[
            :3
        ]
    assert step.samples.valid.tolist() == [True, True, True, False, True]
    assert step.errors == {3: BAD}
    assert step.own is samples
    assert samples.valid.all()


@pytest.mark.parametrize("known_before", [True, False])
def test_candidates_in_unreadable_blocks_are_passed_over_whenever_that_is_found(
    known_before: bool,
) -> None:
    """Known when the step is looked at, or found later: the same replacements."""
    planner = alone(window=40)
    samples = planner.step_samples(0, 1)
    broken = set(samples.block.tolist()[:2])
    step = FilledStep(planner, samples, Known(dict.fromkeys(broken, BAD) if known_before else {}))
    while unreadable := [row for row in range(5) if int(step.samples.block[row]) in broken]:
        assert not known_before
        step.fill(unreadable[0], BAD, unreadable=True)
    found = list(zip(step.samples.ordinal.tolist(), step.samples.valid.tolist(), strict=True))
    assert found == expected_rows(planner, 1, set(), broken)
    assert sorted(step.errors) == [row for row in range(5) if int(samples.block[row]) in broken]


def test_a_window_without_a_good_sample_is_an_error_that_says_so() -> None:
    """After every sample of it was tried; and for one that is alone in its window."""
    planner = alone()
    step = FilledStep(planner, planner.step_samples(0, 0), Known())
    tries = 0
    while not isinstance(found := step.fill(2, BAD), DataError):
        tries += 1
    assert 19 <= tries <= 25
    assert "no good sample of its window" in found.reason
    single = alone((1,), batch=1, window=1)
    assert isinstance(
        FilledStep(single, single.step_samples(0, 0), Known()).fill(0, BAD), DataError
    )


def test_tries_are_bounded_in_large_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the window: so many are decoded, or looked at where blocks cannot be read."""
    planner = alone((1000,) * 20, window=20_000)
    step = FilledStep(planner, planner.step_samples(0, 0), Known())
    fills = 0
    while not isinstance(step.fill(0, BAD), DataError):
        fills += 1
    assert fills == replacements.MOST_TRIES
    looked_at = 0
    locate = planner.sequence.locate

    def counted(*arguments: Any) -> Any:
        nonlocal looked_at
        looked_at += 1
        return locate(*arguments)

    monkeypatch.setattr(planner.sequence, "locate", counted)
    found = FilledStep(planner, step.own, Known(dict.fromkeys(range(20), BAD))).fill(
        0, BAD, unreadable=True
    )
    assert isinstance(found, DataError)
    assert looked_at == 5 * replacements.MOST_CANDIDATES
