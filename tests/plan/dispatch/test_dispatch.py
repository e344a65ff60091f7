"""Dispatch delivers every step once, in order, within `max_bytes`.

It does so whatever fails or is lost, and in any order of completions.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.plan.dispatch import events as ev
from tests.support.dispatch_world import World, windowed_steps, world

ROWS, ROW_BYTES = 6, 10
CHUNK = ROWS * ROW_BYTES


def plan(seed: int, steps: int = 12) -> tuple[np.ndarray, list[ev.StepWork]]:
    """Return sizes of blocks, and steps that take their rows from windows of the blocks."""
    rng = random.Random(seed)
    sizes = np.array([rng.randint(20, 200) for _ in range(20)])
    return sizes, windowed_steps(rng, sizes, steps, ROWS, blocks_per_window=5, steps_per_window=4)


def assert_all_delivered(delivered: list[tuple[int, list[int]]], steps: int) -> None:
    assert delivered == [(step, list(range(ROWS))) for step in range(steps)]


budgets = st.sampled_from([0, 1, 50, 200, 1000, 1 << 40])
ANY: dict[str, Any] = {
    "seed": st.integers(0, 10**6),
    "spare": budgets,
    "read_ahead": st.integers(1, 12),
    "decode_ahead": st.integers(0, 4),
    "ready_batches": st.integers(1, 3),
    "first_task_rows": st.sampled_from([1, 2, 4, 100]),
    "read_blocks": st.integers(1, 4),
    "inline_bytes": st.sampled_from([0, 60, 1 << 30]),
}


@settings(max_examples=150)
@given(**ANY)
def test_every_step_comes_once_in_order_within_any_budget_that_holds_a_block_and_a_batch(
    seed, spare, **limits
):
    """No order of completions loses, repeats or reorders a step, or exceeds the budget."""
    sizes, steps = plan(seed)
    w = world(seed, sizes, ROW_BYTES, max_bytes=int(sizes.max()) + CHUNK + spare, **limits)
    w.start(iter(steps))
    w.run()
    assert w.failed is None
    assert_all_delivered(w.delivered, len(steps))
    assert w.dispatch.charged_bytes == 0
    assert not w.store


@settings(max_examples=150)
@given(**ANY)
def test_failures_and_losses_change_nothing(seed, spare, **limits):
    """Failed tasks are repeated, as is the work of lost workers; the steps stay the same."""
    sizes, steps = plan(seed)
    w = world(
        seed, sizes, ROW_BYTES, max_bytes=int(sizes.max()) + CHUNK + spare, max_tries=1000, **limits
    )
    w.start(iter(steps))
    w.run(fail_rate=0.15, loss_rate=0.1)
    assert w.failed is None
    assert_all_delivered(w.delivered, len(steps))
    assert w.dispatch.charged_bytes == 0


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), moves=st.integers(0, 60), spare=budgets)
def test_a_new_start_in_the_middle_delivers_the_new_steps_alone(seed, moves, spare):
    """Old tasks stay charged until they end; their steps are never delivered."""
    sizes, steps = plan(seed)
    w = world(
        seed,
        sizes,
        ROW_BYTES,
        max_bytes=int(sizes.max()) + CHUNK + spare,
        read_ahead=6,
        inline_bytes=0,
    )
    w.start(iter(steps))
    for _ in range(moves):
        possible = w.moves()
        if possible:
            w.move(*w.rng.choice(possible))
    others = plan(seed + 1)[1]
    w.start(iter(others))
    w.run()
    assert_all_delivered(w.delivered, len(others))
    assert w.dispatch.charged_bytes == 0


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), guess=st.sampled_from([0.1, 1.0, 1000.0]))
def test_wrong_estimates_cost_neither_rows_nor_progress(seed, guess):
    """The first expected sizes may be wrong; sizes of blocks and rows that arrive correct them."""
    sizes, steps = plan(seed)
    w = world(seed, sizes, ROW_BYTES, expected_row_bytes=guess, max_bytes=int(sizes.max()) + CHUNK)
    w.start(iter(steps))
    w.run()
    assert w.failed is None
    assert_all_delivered(w.delivered, len(steps))


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    spare=st.integers(0, 8 * CHUNK),
    ready=st.integers(0, 4),
    rows=st.sampled_from([1, 2, 4, 100]),
)
def test_rows_that_become_larger_cost_neither_rows_nor_progress(seed, spare, ready, rows):
    """Outputs decoded ahead may be evicted, all parts of a task at once, and decoded again."""
    sizes, steps = plan(seed)
    limits = {"decode_ahead": ready, "first_task_rows": rows, "inline_bytes": 0}
    w = world(
        seed, sizes, expected_row_bytes=1, max_bytes=int(sizes.max()) + 4 * CHUNK + spare, **limits
    )
    w.row_bytes = lambda step: ROW_BYTES * (1 + 3 * (step // 4 % 2))
    w.start(iter(steps))
    w.run()
    assert w.peak <= w.dispatch.limits.max_bytes
    assert w.failed is None
    assert_all_delivered(w.delivered, len(steps))
    assert w.dispatch.charged_bytes == 0


@settings(max_examples=200)
@given(
    seed=st.integers(0, 10**6),
    budget=st.integers(1, 600),
    rows=st.sampled_from([1, 2, 4, 100]),
    guess=st.sampled_from([0.1, 1.0, 20.0, 1000.0]),
    guessed=st.lists(st.sampled_from([0.01, 0.3, 1.0, 5.0, 100.0]), min_size=1, max_size=4),
    inline_bytes=st.sampled_from([0, 20]),
)
def test_no_budget_is_exceeded_whatever_the_sizes_of_blocks_and_rows(
    seed, budget, rows, guess, guessed, inline_bytes
):
    """Either every step is delivered, or dispatch fails since a block and a batch do not fit."""
    sizes, steps = plan(seed)
    expected = np.ceil(sizes * np.resize(guessed, len(sizes))).astype(np.int64)
    limits = {"max_bytes": budget, "first_task_rows": rows, "inline_bytes": inline_bytes}
    w = world(seed, sizes, expected_row_bytes=guess, expected_sizes=expected, **limits)
    w.row_bytes = lambda step: ROW_BYTES * (1 + 3 * (step // 4 % 2))
    w.start(iter(steps))
    w.run()
    assert max(w.most, w.peak) <= budget
    if w.failed is None:
        assert_all_delivered(w.delivered, len(steps))
    else:
        assert budget < sizes[list(w.failed.blocks)].max() + 4 * CHUNK


@given(seed=st.integers(0, 10**6), spare=st.integers(0, 8 * CHUNK), ready=st.integers(0, 40))
def test_rows_that_are_larger_than_expected_stay_within_the_budget(seed, spare, ready):
    """A decode has a budget and leaves out the rows beyond it.

    So nothing exceeds `max_bytes` where each step fits together with its blocks.
    """
    sizes, steps = plan(seed, steps=40)
    limits = {
        "decode_ahead": ready,
        "first_task_rows": 100,
        "read_ahead": 40,
        "max_bytes": ROWS * int(sizes.max()) + 4 * CHUNK + spare,
    }
    w = world(seed, sizes, expected_row_bytes=1, **limits)
    w.row_bytes = lambda step: ROW_BYTES * (1 + 3 * (step // 10 % 2))
    w.start(iter(steps))
    w.run()
    assert w.most <= limits["max_bytes"]
    assert_all_delivered(w.delivered, len(steps))


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), broken=st.integers(0, 19))
def test_an_unreadable_block_fails_its_own_steps_alone(seed, broken):
    """Exactly the steps that need the block give the error; all others are delivered."""
    sizes, steps = plan(seed)
    w = world(seed, sizes, ROW_BYTES)
    w.block_errors = frozenset({broken})
    w.start(iter(steps))
    w.run()
    hurt = {i for i, step in enumerate(steps) if broken in step.block}
    assert set(w.errors) == hurt
    assert [step for step, _ in w.delivered] == list(range(len(steps)))
    assert all(rows == list(range(ROWS)) for step, rows in w.delivered if step not in hurt)


def crash_workers_that_decode(w: World, culprit: tuple[int, int]) -> None:
    """Run to the end; a worker crashes as soon as it gets the culprit, a (step, row)."""
    while w.moves() and not w.failed:
        deadly = [
            command.worker
            for command in w.decoding.values()
            for part in command.parts
            if part.step == culprit[0] and culprit[1] in part.rows
        ]
        if deadly:
            w.lose_worker(deadly[0], ev.WorkerFailure.CRASHED)
        else:
            w.move(*w.moves()[0])


@pytest.mark.parametrize("row", [0, 3, 5])
def test_a_sample_that_ends_its_worker_is_found_and_nothing_else_is_blamed(row):
    """Halving the task finds the row. Its step gives an error; other steps arrive whole."""
    sizes, steps = plan(10)
    w = world(10, sizes, ROW_BYTES)
    w.start(iter(steps))
    crash_workers_that_decode(w, (5, row))
    assert w.failed is None
    assert list(w.errors) == [5]
    assert "ended its worker" in str(w.errors[5])
    assert [step for step, _ in w.delivered] == list(range(len(steps)))
    assert all(rows == list(range(ROWS)) for step, rows in w.delivered if step != 5)
    assert w.losses <= 10


def test_a_late_decode_is_repeated_by_another_worker_and_the_first_result_wins():
    """Either copy may end first; the result of the other one is dropped."""
    for first in (0, 1):
        sizes, steps = plan(11)
        w = world(11, sizes, ROW_BYTES)
        w.start(iter(steps))
        while not w.decoding:
            w.move(*w.moves()[0])
        late = next(iter(w.decoding))
        w.tell(ev.Overdue(late))
        w.tell(ev.Overdue(late))
        copies = [
            task
            for task, c in w.decoding.items()
            if c.parts[0].step == w.decoding[late].parts[0].step
        ]
        assert len(copies) == 2
        assert w.decoding[copies[0]].worker != w.decoding[copies[1]].worker
        for task in (copies[first], copies[1 - first]):
            w.end_decode(task)
        w.run()
        assert_all_delivered(w.delivered, len(steps))
        assert w.dispatch.stats()["hedges"] == 1
        assert not w.outputs


def test_a_late_read_is_repeated_and_the_first_result_wins():
    """The only reader repeats its own read; both copies are charged while both run."""
    sizes, steps = plan(12)
    w = world(12, sizes, ROW_BYTES)
    w.start(iter(steps))
    late = next(iter(w.reading))
    before = w.dispatch.charged_bytes
    w.tell(ev.Overdue(late))
    assert w.dispatch.charged_bytes > before
    again = max(w.reading)
    assert w.reading[again].blocks == w.reading[late].blocks
    w.end_read(again)
    w.run()
    assert_all_delivered(w.delivered, len(steps))
    assert w.dispatch.stats()["hedges"] == 1


def test_decodes_that_hold_lost_blocks_are_not_waited_for():
    """A worker that waits for a lost block may hang: other workers repeat its work meanwhile."""
    sizes, steps = plan(13)
    w = world(13, sizes, ROW_BYTES)
    w.start(iter(steps))
    while not w.decoding:
        w.move(*w.moves()[0])
    stuck = next(iter(w.decoding))
    lost = w.decoding[stuck].blocks
    w.store -= set(lost)
    w.vanished |= set(lost)
    w.hung.add(stuck)
    w.tell(ev.BlocksLost(lost))
    while others := [move for move in w.moves() if move[1] != stuck or move[0] == "take"]:
        w.move(*others[0])
    assert_all_delivered(w.delivered, len(steps))


def test_too_small_a_budget_fails_with_the_budget_that_suffices():
    """One byte less than a block and a batch fails; the message has both numbers."""
    sizes, steps = plan(3)
    needed = int(sizes[steps[0].block].max()) + CHUNK
    w = world(3, sizes, ROW_BYTES, max_bytes=needed - 1)
    w.start(iter(steps))
    w.run()
    assert w.failed is not None
    assert str(needed - 1) in w.failed.reason
    assert "or more" in w.failed.reason


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), read_ahead=st.integers(1, 12), rows=st.sampled_from([1, 4, 100]))
def test_the_budget_that_is_advised_is_enough(seed, read_ahead, rows):
    """It suffices even if the largest block comes later and rows grow by a tenth."""
    sizes, steps = plan(seed)
    budget = int(sizes.max())  # less holds no block, so the size of a batch stays unknown
    for advised in (False, True):
        w = world(
            seed,
            sizes,
            expected_row_bytes=1,
            max_bytes=budget,
            read_ahead=read_ahead,
            first_task_rows=rows,
        )
        w.row_bytes = lambda step: 100 + min(step, 10)
        w.start(iter(steps))
        w.run()
        if not advised:
            assert w.failed is not None
            budget = int(w.failed.reason.split()[-3])
    assert w.failed is None
    assert_all_delivered(w.delivered, len(steps))


def test_a_task_that_keeps_failing_ends_in_an_error_with_its_cause():
    """Dispatch gives up after `max_tries` attempts."""
    sizes, steps = plan(4)
    w = world(4, sizes, ROW_BYTES, max_tries=3)
    w.start(iter(steps))
    w.run(fail_rate=1.0)
    assert w.failed is not None
    assert w.failed.blocks
    assert w.failed.error is not None
    assert w.dispatch.stats()["retries"] >= 3


def test_a_window_larger_than_the_budget_reads_blocks_again_and_counts_them():
    """`blocks_reread` counts blocks that were evicted and read again."""
    sizes, steps = plan(5)
    tight = world(5, sizes, ROW_BYTES, max_bytes=int(sizes.max()) + CHUNK)
    tight.start(iter(steps))
    tight.run()
    assert tight.dispatch.stats()["blocks_reread"] > 0
    ample = world(5, sizes, ROW_BYTES)
    ample.start(iter(steps))
    ample.run()
    assert ample.dispatch.stats()["blocks_reread"] == 0
    assert ample.dispatch.stats()["blocks_read"] == len(
        {(i // 4, b) for i, s in enumerate(steps) for b in s.block}
    )


def test_a_store_that_frees_late_causes_hardly_a_second_read_where_the_window_fits():
    """Dispatch waits for released bytes before it evicts more.

    Without this wait it reads about 100 blocks again.
    """
    rereads = 0
    for seed in range(20):
        sizes, steps = plan(seed, steps=40)
        window = int(1.5 * np.sort(sizes)[-5:].sum())
        w = world(
            seed, sizes, ROW_BYTES, max_bytes=window + 4 * CHUNK, inline_bytes=0, read_ahead=6
        )
        w.start(iter(steps))
        w.run()
        assert_all_delivered(w.delivered, len(steps))
        rereads += w.dispatch.stats()["blocks_reread"]
    assert rereads <= 2


def test_room_for_all_missing_blocks_of_a_step_is_made_at_once():
    """Dispatch waits for a store that frees late once a step, not once a block."""
    steps = [ev.StepWork(np.arange(8) + 8 * (i % 2), np.full(8, 10)) for i in range(10)]
    w = world(
        0,
        np.full(16, 100),
        ROW_BYTES,
        max_bytes=8 * 100 + 2 * 8 * ROW_BYTES,
        inline_bytes=0,
        read_ahead=4,
    )
    drops: list[tuple[int, ...]] = []
    handle = w.dispatch.handle

    def watched(*events: ev.Event) -> list[ev.Command]:
        commands = handle(*events)
        drops.extend(command.blocks for command in commands if isinstance(command, ev.Drop))
        return commands

    w.dispatch.handle = watched
    w.start(iter(steps))
    w.run()
    assert len(w.delivered) == len(steps)
    assert len(drops) < len(steps)


@pytest.mark.parametrize(("room_bytes", "ready"), [(0, 2), (5 * 6 * ROW_BYTES, 5), (1 << 30, 10)])
def test_a_consumer_that_takes_nothing_stops_everything_upstream(room_bytes, ready):
    """Ready batches stay within their limits, and dispatch looks `read_ahead` steps beyond them."""
    sizes, steps = plan(6, steps=40)
    assert {len(step) for step in steps} == {6}
    w = world(
        6,
        sizes,
        ROW_BYTES,
        read_ahead=4,
        decode_ahead=2,
        ready_batches=2,
        max_ready_batches=10,
        ready_bytes=room_bytes,
    )
    w.start(iter(steps))
    while moves := [move for move in w.moves() if move[0] != "take"]:
        w.move(*moves[0])
    assert len(w.delivered) == ready
    assert w.dispatch.state.queue.horizon == ready + 4
    assert not w.dispatch.state.workers.tasks


def test_late_results_of_a_lost_worker_are_ignored():
    """The end of a task that dispatch has given up changes nothing."""
    sizes, steps = plan(7)
    w = world(7, sizes, ROW_BYTES)
    w.start(iter(steps))
    task, command = next(iter(w.reading.items()))
    for other in [t for t, c in w.reading.items() if c.worker == command.worker]:
        del w.reading[other]
    w.tell(ev.WorkerLost(command.worker, ev.WorkerFailure.NODE_LOST))
    before = w.dispatch.charged_bytes
    w.tell(ev.ReadDone(task, tuple(int(sizes[b]) for b in command.blocks)))
    assert w.dispatch.charged_bytes == before
    w.join("reader")
    w.run()
    assert_all_delivered(w.delivered, len(steps))


def test_workers_that_are_lost_with_their_nodes_cost_no_tries():
    """Their work is repeated without a limit; only a failure that counts as a try is limited."""
    sizes, steps = plan(9)
    for failure in ev.WorkerFailure:
        w = world(9, sizes, ROW_BYTES)
        w.start(iter(steps))
        for _ in range(6):
            if w.reading:
                w.lose_worker(next(iter(w.reading.values())).worker, failure)
        assert (w.failed is not None) == failure.counts_as_try
        if not failure.counts_as_try:
            w.run()
            assert_all_delivered(w.delivered, len(steps))


def test_the_stall_cause_is_what_the_step_due_lacks():
    """First "read", with or without decoders; then "workers" until a decoder joins; then
    "decode".
    """
    sizes, steps = plan(10)
    w = world(10, sizes, ROW_BYTES)
    decoders = [
        name
        for name, worker in w.dispatch.state.workers.workers.items()
        if worker.role == "decoder"
    ]
    for name in decoders:
        w.tell(ev.WorkerLost(name, ev.WorkerFailure.REMOVED))
    w.start(iter(steps))
    assert w.dispatch.stall_cause() == "read"
    while w.reading:
        w.end_read(next(iter(w.reading)))
    assert w.dispatch.stall_cause() == "workers"
    w.join("decoder")
    assert w.dispatch.stall_cause() == "decode"
    w.run()
    assert_all_delivered(w.delivered, len(steps))
    assert w.dispatch.stall_cause() == ""


def parts_of_decodes(steps: list[ev.StepWork], **limits: int) -> list[int]:
    """Return the number of parts of each decode; the first tasks have about 6 rows."""
    w = world(
        8,
        np.full(4, 50),
        ROW_BYTES,
        **{
            "read_ahead": 40,
            "decode_ahead": 40,
            "ready_batches": 40,
            "first_task_rows": 6,
            **limits,
        },
    )
    parts: list[int] = []
    obey = w._obey

    def watch(command: ev.Command) -> None:
        if isinstance(command, ev.Decode):
            parts.append(len(command.parts))
        obey(command)

    w._obey = watch
    w.start(iter(steps))
    w.run()
    return parts


@pytest.mark.parametrize("rows", [1, 3])
def test_small_steps_share_a_task(rows):
    """A task of 6 rows takes 6 steps of one row, or 2 steps of 3 rows."""
    parts = parts_of_decodes(
        [ev.StepWork(np.zeros(rows, np.int64), np.full(rows, 40)) for _ in range(40)]
    )
    assert sum(parts) == 40
    assert parts[0] == 6 // rows


def test_steps_share_a_task_as_far_as_the_budget_has_room_for_all_decoders():
    """A quarter of `max_bytes` holds 5 tasks: two for each of two decoders, and one more.

    So a task has 3 rows in the first case. In the second a single row does not fit, but a task
    has at least one step.
    """
    steps = [ev.StepWork(np.zeros(1, np.int64), np.full(1, 40)) for _ in range(40)]
    for budget, most in ((4 * 5 * 3 * ROW_BYTES, 3), (4 * 5 * ROW_BYTES // 2, 1)):
        parts = parts_of_decodes(steps, first_task_rows=100, max_bytes=budget)
        assert sum(parts) == 40
        assert max(parts) == most


def test_a_large_step_is_shared_by_several_tasks():
    """A step of 30 rows becomes 5 tasks of 6 rows."""
    assert sum(parts_of_decodes([ev.StepWork(np.zeros(30, np.int64), np.full(30, 1))])) == 5


def test_the_first_decode_comes_alone():
    """Further decodes begin once the first one has shown how many bytes a row has."""
    sizes, steps = plan(9)
    w = world(9, sizes, ROW_BYTES, first_task_rows=2, task_seconds=0.05)
    w.start(iter(steps))
    while w.reading:
        w.end_read(next(iter(w.reading)))
    assert len(w.decoding) == 1
    w.end_decode(next(iter(w.decoding)))
    assert len(w.decoding) > 1
