"""The planner against the rules, and against what is promised of them."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayingest.errors import ConfigError
from rayingest.plan.order import randomness, window
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import EpochLength
from rayingest.plan.order.window import Lanes
from tests.support import plan_reference
from tests.support.plan_cases import (
    divisors,
    global_batch,
    manifest,
    order,
    planners,
    rows,
    rules,
    same,
    uniform,
    window_planner,
)
from tests.support.plan_reference import Rules

EPOCHS = st.sampled_from([0, 1, 2, 10**6])


def expected(case: Rules, epoch: int) -> list[list[tuple[int, int, bool]]]:
    return [
        [(row.block, row.row, row.valid) for row in batch]
        for batch in plan_reference.batches(case, epoch)
    ]


def one_rank(case: Rules, epoch: int) -> list[list[tuple[int, int, bool]]]:
    """Every global batch of an epoch, as one rank of one is given them."""
    (alone,) = planners(case, 1)
    return [rows(alone.step_samples(epoch, step)) for step in range(alone.steps_per_epoch)]


# The order


@settings(max_examples=240)
@given(rules(), EPOCHS)
def test_the_planner_follows_the_rules(case: Rules, epoch: int) -> None:
    """Every step's rows, flags included, are those of the independent implementation."""
    assert one_rank(case, epoch) == expected(case, epoch)


@settings(max_examples=70)
@given(rules(file_order=False), EPOCHS)
def test_the_planner_follows_the_rules_with_large_windows(case: Rules, epoch: int) -> None:
    """Windows that are permuted a piece at a time, beside sorted ones, by limits made small enough
    to meet both.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness, "MAX_SORTED", 9)
        patch.setattr(window, "MAX_SORTED", 9)
        patch.setattr(window, "_PIECE", 7)
        assert one_rank(case, epoch) == expected(case, epoch)


@settings(max_examples=70)
@given(rules(), EPOCHS)
def test_every_world_size_that_divides_sees_the_same_global_batches(
    case: Rules, epoch: int
) -> None:
    """For each divisor of the batch: equal step counts, equal rows a rank but in a short tail, the
    same batches.
    """
    want = expected(case, epoch)
    for world_size in divisors(case.batch):
        ranks = planners(case, world_size)
        assert {rank.steps_per_epoch for rank in ranks} == {len(want)}
        assert [global_batch(ranks, epoch, step) for step in range(len(want))] == want
        if case.partial != "short":
            assert {
                rank.step_samples(epoch, step).rows for rank in ranks for step in range(len(want))
            } == {case.batch // world_size}


@settings(max_examples=40)
@given(rules(max_batch=12), EPOCHS, st.integers(2, 16))
def test_uneven_world_sizes_see_the_same_global_batches(
    case: Rules, epoch: int, world_size: int
) -> None:
    """Ranks differ by at most one row, ranks without any included, and miss or repeat nothing
    between them.
    """
    want = expected(case, epoch)
    ranks = planners(case, world_size)
    for step, batch in enumerate(want):
        samples = [rank.step_samples(epoch, step) for rank in ranks]
        assert [row for one in samples for row in rows(one)] == batch
        bounds = [rank * len(batch) // world_size for rank in range(world_size + 1)]
        assert [one.rows for one in samples] == [b - a for a, b in pairwise(bounds)]


def test_ordinals_number_the_samples_of_the_manifest() -> None:
    """A sample's ordinal is its block's first and its row; arrays are int64, as long as the flags
    are.
    """
    data = manifest([3, 1, 4, 1, 5])
    samples = window_planner(data, Order.resolve(data, batch=14, seed=2)).step_samples(0, 0)
    assert sorted(samples.ordinal.tolist()) == list(range(14))
    assert (samples.ordinal == data.first_ordinal[samples.block] + samples.row).all()
    assert {
        array.dtype.str for array in (samples.block, samples.row, samples.ordinal, samples.expires)
    } == {"<i8"}
    assert samples.valid.dtype == np.bool_
    assert (
        len(
            {
                len(a)
                for a in (
                    samples.block,
                    samples.row,
                    samples.ordinal,
                    samples.expires,
                    samples.valid,
                )
            }
        )
        == 1
    )


# Exactly once, by each policy


@settings(max_examples=50)
@given(rules(partials=["drop"]), EPOCHS)
def test_drop_uses_each_sample_at_most_once(case: Rules, epoch: int) -> None:
    """Full batches only, all rows valid; fewer samples than one batch are left over."""
    batches = one_rank(case, epoch)
    seen = Counter(row[:2] for batch in batches for row in batch)
    assert {len(batch) for batch in batches} == {case.batch}
    assert all(valid for batch in batches for _, _, valid in batch)
    assert max(seen.values()) == 1
    assert 0 <= case.samples - len(seen) < case.batch


@settings(max_examples=50)
@given(rules(partials=["pad", "short"]), EPOCHS)
def test_pad_and_short_use_each_sample_once_in_a_valid_row(case: Rules, epoch: int) -> None:
    """All of them, none twice."""
    valid = [
        (block, row)
        for batch in one_rank(case, epoch)
        for block, row, is_valid in batch
        if is_valid
    ]
    assert sorted(valid) == [
        (block, row) for block, count in enumerate(case.counts) for row in range(count)
    ]


@settings(max_examples=50)
@given(rules(partials=["pad"]), EPOCHS)
def test_pad_fills_the_last_batch_alone(case: Rules, epoch: int) -> None:
    """Every batch is full; rows that are not valid stand in the last one, and lanes differ by at
    most one of them.
    """
    batches = one_rank(case, epoch)
    assert {len(batch) for batch in batches} == {case.batch}
    assert all(valid for batch in batches[:-1] for _, _, valid in batch)
    b = case.lane_batch
    repeats = [
        sum(not valid for _, _, valid in batches[-1][at : at + b]) for at in range(0, case.batch, b)
    ]
    assert sum(repeats) == -case.samples % case.batch
    assert max(repeats) - min(repeats) <= 1


def test_pad_repeats_a_lanes_last_positions_backwards() -> None:
    """Position p >= n of a lane of n samples repeats n - 1 - ((p - n) mod n), round and round."""
    data = manifest([5])
    file_order = window_planner(data, Order.resolve(data, batch=12, partial="pad")).step_samples(
        0, 0
    )
    assert file_order.row.tolist() == [0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 4, 3]
    assert file_order.valid.tolist() == [True] * 5 + [False] * 7
    lanes = (
        window_planner(data, Order.resolve(data, batch=8, partial="pad", seed=1, lanes=2))
        .step_samples(0, 0)
        .row.tolist()
    )
    assert lanes[2:4] == lanes[1::-1]
    assert lanes[7:8] == lanes[6:7]
    assert sorted(lanes[:2] + lanes[4:7]) == [0, 1, 2, 3, 4]


@settings(max_examples=50)
@given(rules(partials=["short"]), EPOCHS)
def test_short_repeats_nothing(case: Rules, epoch: int) -> None:
    """All rows are valid; the last batch is what is left."""
    batches = one_rank(case, epoch)
    assert all(valid for batch in batches for _, _, valid in batch)
    assert [len(batch) for batch in batches[:-1]] == [case.batch] * (case.steps - 1)
    assert len(batches[-1]) == case.samples - case.batch * (case.steps - 1)


@settings(max_examples=30)
@given(rules(partials=["short"], max_batch=12), EPOCHS)
def test_a_rank_without_rows_is_shown_a_sample(case: Rules, epoch: int) -> None:
    """It takes every step like the others; the sample whose fields its empty batch takes is one of
    the data.
    """
    for rank in planners(case, case.batch):
        for step in range(rank.steps_per_epoch):
            samples = rank.step_samples(epoch, step)
            assert samples.rows == (1 if step < case.full_steps else len(rows(samples)))
            assert len(samples.block) == max(1, samples.rows)
            assert (samples.row < np.array(case.counts)[samples.block]).all()
            assert (samples.expires > step).all()


def test_a_short_tail_leaves_ranks_without_rows() -> None:
    """Two samples left over four ranks: floor bounds give them to the second and the last."""
    case = Rules((10,), 8, "short", 3, 2, 8)
    assert [rank.step_samples(0, 1).rows for rank in planners(case, 4)] == [0, 1, 0, 1]


# Windows


@settings(max_examples=70)
@given(rules(partials=["short", "pad"], file_order=False), EPOCHS)
def test_batches_never_straddle_windows(case: Rules, epoch: int) -> None:
    """What the steps of a window take of a lane is that stretch of the sequence, whole, and nothing
    else.
    """
    places, batches, b = (
        plan_reference.sequence(case, epoch),
        one_rank(case, epoch),
        case.lane_batch,
    )
    if case.partial == "short" and case.samples % case.batch:
        # Lanes differ in length in the last batch; the windows before it determine its rows.
        batches.pop()
    for lane in range(case.lanes):
        first, last = plan_reference.lane_bounds(case, lane)
        for begin, end in plan_reference.windows(case, lane):
            steps = batches[begin // b : end // b if end < last - first else None]
            taken = {row[:2] for batch in steps for row in batch[lane * b : (lane + 1) * b]}
            stretch = set(places[first + begin : first + end])
            assert taken <= stretch
            assert case.partial == "short" or taken == stretch


@settings(max_examples=70)
@given(rules(), EPOCHS)
@example(Rules((1,) * 5, 4, "pad", None, 1, 1), 0)  # repeats of blocks that are past
def test_until_is_where_a_window_ends(case: Rules, epoch: int) -> None:
    """By the rules; it is always after the step, and at most the epoch's end."""
    (alone,) = planners(case, 1)
    for step, batch in enumerate(plan_reference.batches(case, epoch)):
        until = alone.step_samples(epoch, step).expires.tolist()
        assert until == [row.until for row in batch]
        assert all(step < u <= case.steps for u in until)


@settings(max_examples=40)
@given(rules(), EPOCHS, st.integers(1, 4))
def test_nothing_of_a_window_is_taken_from_until_on(
    case: Rules, epoch: int, world_size: int
) -> None:
    """No rank takes of the window again, and one takes of it in the step before, but where a tail
    leaves a lane out.
    """
    batches, last = plan_reference.batches(case, epoch), dict[tuple[int, int], int]()
    for step, batch in enumerate(batches):
        last |= {
            (row.lane, row.window): step for row in batch if row.valid or case.seed is not None
        }
    ranks = planners(case, world_size)
    for step, batch in enumerate(batches):
        samples = [rank.step_samples(epoch, step) for rank in ranks]
        until = [at for one in samples for at in one.expires.tolist()[: one.rows]]
        for at, row in zip(until, batch, strict=True):
            late = at - 1 - last[row.lane, row.window]
            assert (
                late == 0
                or not row.valid
                or (late == 1 and case.partial == "short" and at == case.steps)
            )


@settings(max_examples=40)
@given(rules(), EPOCHS)
def test_a_block_is_done_once_all_its_windows_are(case: Rules, epoch: int) -> None:
    """A block is not needed at or after the largest `until` of the windows that hold any of it, but
    by repeats.
    """
    needed_until = [0] * len(case.counts)
    for lane in plan_reference.lanes(case, epoch):
        for row in lane:
            needed_until[row.block] = max(needed_until[row.block], row.until)
    for step, batch in enumerate(one_rank(case, epoch)):
        assert all(step < needed_until[block] for block, _, valid in batch if valid)


# Any position at any time


@settings(max_examples=60)
@given(rules(max_batch=16), st.data())
def test_every_cursor_resumes(case: Rules, draw: st.DataObject) -> None:
    """A new planner gives any step of any epoch as a planner does that gave all steps before."""
    data, made = manifest(case.counts), order(case)
    world_size = draw.draw(st.sampled_from(divisors(case.batch)))
    rank = draw.draw(st.integers(0, world_size - 1))
    walked = window_planner(data, made, rank, world_size)
    for epoch in range(2):
        for step in range(walked.steps_per_epoch):
            assert same(
                walked.step_samples(epoch, step),
                window_planner(data, made, rank, world_size).step_samples(epoch, step),
            )


@settings(max_examples=50)
@given(
    rules(),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**4)), max_size=30),
    st.booleans(),
)
def test_jumps_change_nothing(case: Rules, jumps: list[tuple[int, int]], pieces: bool) -> None:
    """One planner asked to and fro, over more epochs than it keeps, gives what new ones give."""
    with pytest.MonkeyPatch.context() as patch:
        if pieces:
            patch.setattr(window, "MAX_SORTED", 9)
            patch.setattr(randomness, "MAX_SORTED", 9)
            patch.setattr(window, "_PIECE", 7)
        (jumping,) = planners(case, 1)
        for epoch, at in jumps:
            step = at % case.steps
            (new,) = planners(case, 1)
            assert same(jumping.step_samples(epoch, step), new.step_samples(epoch, step))


@settings(max_examples=150)
@given(rules(), EPOCHS, st.integers(1, 9), st.booleans(), st.data())
def test_steps_planned_together_are_those_planned_alone(
    case: Rules, epoch: int, count: int, pieces: bool, draw: st.DataObject
) -> None:
    """From any step on, for any rank, in windows sorted whole and in those permuted a piece at a
    time.
    """
    world_size = draw.draw(st.sampled_from(divisors(case.batch)))
    together, alone = (
        draw_rank[0] for draw_rank in (planners(case, world_size), planners(case, world_size))
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in (randomness, window) if pieces else ():
            patch.setattr(module, "MAX_SORTED", 9)
        patch.setattr(window, "_PIECE", 7)
        step = draw.draw(st.integers(0, max(0, together.steps_per_epoch - 1)))
        while step < together.steps_per_epoch:
            run = together.run(epoch, step, count)
            assert 1 <= len(run) <= count
            assert all(
                same(samples, alone.step_samples(epoch, step + i)) for i, samples in enumerate(run)
            )
            step += len(run)


def test_what_was_given_is_not_overwritten() -> None:
    """The samples of a step stay as they are while later ones are made."""
    (alone,) = planners(Rules((50, 50), 10, "pad", 1, 2, 40), 1)
    first = alone.step_samples(0, 0)
    copies = {name: np.copy(value) for name, value in vars(first).items()}
    for step in range(alone.steps_per_epoch):
        alone.step_samples(0, step)
    assert all(np.array_equal(value, copies[name]) for name, value in vars(first).items())


def test_a_step_outside_the_epoch_is_refused() -> None:
    """Below 0, or at the number of steps."""
    (alone,) = planners(Rules((10,), 4, "drop", 0, 1, 4), 1)
    for step in (-1, 2):
        with pytest.raises(IndexError, match=f"step {step} of an epoch of 2 steps"):
            alone.step_samples(0, step)


def test_a_rank_that_cannot_be_is_refused() -> None:
    """The planner is made for one rank, and checks it when made."""
    data = manifest([12])
    with pytest.raises(ConfigError, match="uneven=True"):
        window_planner(data, Order.resolve(data, batch=12), 0, 5)
    with pytest.raises(ConfigError, match="rank 4"):
        window_planner(data, Order.resolve(data, batch=12), 4, 4)


# Chance


def test_epochs_and_seeds_have_their_own_batches() -> None:
    """Another epoch, or another seed, is another order; file order is the same in every epoch."""
    data = manifest([10] * 10)
    first = [
        tuple(
            window_planner(data, Order.resolve(data, batch=10, seed=seed))
            .step_samples(epoch, 0)
            .ordinal.tolist()
        )
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(first)) == 4
    (plain,) = planners(Rules((10,) * 10, 10, "drop", None, 1, 1), 1)
    assert (
        plain.step_samples(0, 3).ordinal.tolist()
        == plain.step_samples(9, 3).ordinal.tolist()
        == list(range(30, 40))
    )


@pytest.mark.parametrize("counts", [(40,), (7, 33)])
def test_every_sample_is_equally_likely_at_every_step(counts: tuple[int, ...]) -> None:
    """Over 150 epochs, a sample comes up evenly in all 10 steps, with one block or two, one lane or
    four.
    """
    for lanes, size in ((1, 8), (4, 40)):
        (alone,) = planners(Rules(counts, 4, "drop", 5, lanes, size), 1)
        seen = np.array(
            [
                [0 in alone.step_samples(epoch, step).ordinal for step in range(10)]
                for epoch in range(150)
            ]
        )
        tally = seen.sum(axis=0)
        assert tally.sum() == 150
        assert abs(((tally - 15.0) ** 2 / 15).sum() - 9) < 5 * 18**0.5


def test_large_windows_are_planned_alike_by_all_ranks() -> None:
    """A window far above the sorted limit: 8 ranks, and 3 uneven ones, between them take the one
    rank's rows.
    """
    data = uniform(400, 1_000, 100)
    made = Order.resolve(data, batch=64, seed=4, window=300_000, lanes=2)
    alone = window_planner(data, made)
    for world_size in (8, 3):
        ranks = [
            window_planner(data, made, rank, world_size, world_size == 3)
            for rank in range(world_size)
        ]
        for step in (0, 1, 255, 256, 257, 3_000, 6_249):
            assert global_batch(ranks, 2, step) == rows(alone.step_samples(2, step))


def test_the_default_order_of_these_rules_is_what_was_asked_for() -> None:
    """The cases of these tests reach the planner with the lanes they name."""
    case = Rules((30, 30), 12, "drop", 0, 3, 24)
    assert order(case) == Order(60, 12, "drop", 0, 3, 2)


# Exact values


def test_a_window_expires_at_the_step_after_its_last() -> None:
    """Two lanes of 12 samples have windows of 3 steps of 2 rows; the second lane cuts its first."""
    data = manifest([24])
    planner = window_planner(data, Order.resolve(data, batch=4, seed=1, window=12, lanes=2))
    assert Lanes(planner.order).first_window_cut.tolist() == [0, 1]
    expires = [planner.step_samples(0, step).expires.tolist() for step in range(6)]
    assert [rows[:2] for rows in expires] == [[3, 3]] * 3 + [[6, 6]] * 3
    assert [rows[2:] for rows in expires] == [[2, 2]] * 2 + [[5, 5]] * 3 + [[6, 6]]
    windows = [planner.step_samples(0, step).window_begin.tolist()[2] for step in range(6)]
    assert windows == [12, 12, 16, 16, 16, 18]


def test_a_block_in_file_order_expires_at_the_step_after_its_last_sample() -> None:
    """Blocks of 3, 5 and 4 in batches of 4, counted in passes and in epochs of two passes."""
    data = manifest([3, 5, 4])
    order = Order.resolve(data, batch=4)
    planner = window_planner(data, order)
    assert [planner.step_samples(5, step).expires.tolist() for step in range(3)] == [
        [1, 1, 1, 2],
        [2, 2, 2, 2],
        [3, 3, 3, 3],
    ]
    twice = window_planner(data, order, epoch_length=EpochLength(3, 6))
    assert twice.step_samples(1, 3).expires.tolist() == [4, 4, 4, 5]
    assert twice.step_samples(1, 3).pass_number == 3
    samples = twice.step_samples(1, 3)
    assert twice.replacement(samples, 0, 11) == (2, 3, 11, 6)
    assert twice.replacement(samples, 0, 0) == (0, 0, 0, 4)


def test_a_rank_without_rows_names_the_first_row_of_the_step() -> None:
    """Of a full step and of a short tail."""
    data = manifest([7])
    order = Order.resolve(data, batch=2, partial="short")
    first = window_planner(data, order, 0, 3, True)
    assert first.step_samples(0, 1).rows == 0
    assert first.step_samples(0, 1).ordinal.tolist() == [2]
    assert first.step_samples(0, 3).rows == 0
    assert first.step_samples(0, 3).ordinal.tolist() == [6]
    assert first.run(0, 0, 3)[0].ordinal.tolist() == [0]
