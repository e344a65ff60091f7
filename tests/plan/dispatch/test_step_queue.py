"""The step queue cuts steps into chunks, and delivers them in order."""

from __future__ import annotations

import numpy as np
import pytest

from rayingest.plan.dispatch.chunks import Chunk, ChunkState
from rayingest.plan.dispatch.events import StepWork
from rayingest.plan.dispatch.step_queue import Pace, StepQueue
from tests.support.dispatch_script import make_chunk, make_step

# Pace


def test_the_largest_row_seen_replaces_the_guess() -> None:
    """Sizes are rounded up, and are at least one byte."""
    pace = Pace(100.0, 0.4, 16)
    assert not pace.measured
    assert pace.expected_bytes(1.5) == 150
    pace.observe_output(2, 31)
    assert pace.measured
    assert pace.expected_bytes(1) == 16
    pace.observe_output(2, 20)
    assert pace.expected_bytes(2) == 31
    pace.observe_output(1, 17)
    assert pace.expected_bytes(2) == 34
    assert pace.expected_bytes(0.01) == 1
    assert Pace(0.0, 0.4, 16).expected_bytes(5) == 1


def test_a_task_has_the_rows_that_take_the_wanted_time() -> None:
    """The first ones have a fixed number; then a moving mean of 4/5 and 1/5 counts."""
    pace = Pace(1.0, 1.0, 16)
    assert pace.task_rows == 16
    pace.observe_task(4, 0.5)
    assert pace.task_rows == 8
    pace.observe_task(4, 1.0)  # 0.8 / 8 s + 0.2 / 4 s = 0.15 s
    assert pace.task_rows == 6


@pytest.mark.parametrize(("seconds", "rows"), [(1e-9, 1 << 16), (100.0, 1)])
def test_a_task_has_neither_no_row_nor_too_many(seconds: float, rows: int) -> None:
    """However fast or slow decoding is."""
    pace = Pace(1.0, 0.4, 16)
    pace.observe_task(1, seconds)
    assert pace.task_rows == rows


# Cutting


def queue_of(*steps: StepWork, task_rows: int = 4, whole_steps: bool = False) -> StepQueue:
    """Return a queue of these steps, whose tasks have `task_rows` rows."""
    return StepQueue(iter(steps), Pace(1.0, 0.4, task_rows), whole_steps)


def cut(work: StepWork, **options: object) -> list[list[int]]:
    """Return the rows of each chunk that a step is cut into."""
    return [chunk.rows.tolist() for chunk, _ in queue_of(work, **options).take_up()]


def test_a_step_is_cut_into_the_fewest_chunks_of_even_size() -> None:
    """None has more rows than a task, unless steps stay whole."""
    assert cut(make_step(*range(4))) == [[0, 1, 2, 3]]
    assert cut(make_step(*range(5))) == [[0, 1, 2], [3, 4]]
    assert cut(make_step(*range(9))) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert cut(make_step(*range(5)), whole_steps=True) == [[0, 1, 2, 3, 4]]


def test_the_cost_of_a_step_counts_and_not_its_samples() -> None:
    """A chunk has at least one sample; each costs its share."""
    assert cut(make_step(*range(8), cost=4)) == [[*range(8)]]
    assert cut(make_step(0, 1, cost=20)) == [[0], [1]]
    chunks = [chunk for chunk, _ in queue_of(make_step(*range(4), cost=6)).take_up()]
    assert [(chunk.row_cost, chunk.cost) for chunk in chunks] == [(1.5, 3.0)] * 2


def test_a_row_that_ended_workers_is_a_chunk_by_itself_which_one_crash_blames() -> None:
    """The other rows are cut as if it were not there."""
    queue = queue_of(make_step(*range(10, 16), deadly=(4, 1)))
    chunks = [chunk for chunk, _ in queue.take_up()]
    assert [chunk.rows.tolist() for chunk in chunks] == [[0, 2], [3, 5], [4], [1]]
    assert [chunk.crashes for chunk in chunks] == [0, 0, 3, 3]
    assert [chunk.blocks for chunk in chunks] == [(10, 12), (13, 15), (14,), (11,)]
    assert {chunk.row_cost for chunk in chunks} == {1.0}
    assert cut(make_step(7, 8, deadly=(0, 1))) == [[0], [1]]
    assert cut(make_step(*range(9), deadly=(*range(1, 9),))) == [[i] for i in range(9)]


def test_a_chunk_has_the_latest_expiry_of_its_rows_for_each_block() -> None:
    """The other chunks of the step do not count."""
    work = StepWork(np.array([3, 1, 3, 3, 1]), np.array([5, 0, 7, 6, 9]))
    chunks = queue_of(work, task_rows=3).take_up()
    assert [(chunk.blocks, expires) for chunk, expires in chunks] == [
        ((1, 3), [0, 7]),
        ((1, 3), [9, 6]),
    ]


def test_steps_are_taken_up_in_order_until_none_is_left() -> None:
    """The horizon counts them; after the last it is later than every step."""
    queue = queue_of(make_step(0, 1), make_step(0, 1, 2), make_step(0))
    assert (queue.due, queue.horizon, queue.max_step_cost) == (0, 0, 0)
    assert queue.due_chunks() == []
    seen = []
    for _ in range(3):
        ((chunk, _),) = queue.take_up()
        queue.offer(chunk)
        seen.append((chunk.step, queue.horizon, queue.max_step_cost))
    assert seen == [(0, 1, 2), (1, 2, 3), (2, 3, 3)]
    assert not queue.exhausted
    queue.validate()
    assert queue.take_up() == []
    assert queue.exhausted
    assert 1 << 60 < queue.horizon < 1 << 62
    queue.validate()


# Chunks


def taken_up(*steps: StepWork, **options: object) -> tuple[StepQueue, list[Chunk]]:
    """Return a queue that has taken up these steps, and their chunks, all of them ready."""
    queue = queue_of(*steps, **options)
    chunks = [chunk for _ in steps for chunk, _ in queue.take_up()]
    for chunk in chunks:
        queue.offer(chunk)
    return queue, chunks


def test_the_first_ready_chunk_comes_first() -> None:
    """A chunk that misses a block, is being decoded or is obsolete is not ready."""
    queue, chunks = taken_up(*[make_step(0)] * 4)
    chunks[0].missing = 1
    assert queue.next_ready() is chunks[1]
    assert queue.next_ready() is chunks[1]
    chunks[1].state = ChunkState.DECODING
    assert queue.next_ready() is chunks[2]
    chunks[2].obsolete = True
    assert queue.next_ready() is chunks[3]
    chunks[0].missing = 0
    queue.offer(chunks[0])
    assert queue.next_ready() is chunks[0]


def test_only_a_ready_chunk_is_offered() -> None:
    """Others would be looked at for nothing."""
    queue = queue_of(make_step(0), make_step(0))
    (missing, _), (done, _) = queue.take_up() + queue.take_up()
    missing.missing, done.state = 1, ChunkState.DONE
    queue.offer(missing)
    queue.offer(done)
    missing.missing, done.state = 0, ChunkState.WAITING
    assert queue.next_ready() is None


def test_a_step_is_delivered_when_all_its_chunks_are_done() -> None:
    """Then the next step is due."""
    queue, chunks = taken_up(make_step(0, 1, 2), make_step(0), task_rows=2)
    assert queue.due_chunks() == chunks[:2]
    chunks[1].finish()
    chunks[2].finish()
    assert queue.deliver() is None
    chunks[0].finish()
    assert queue.deliver() == chunks[:2]
    assert (queue.due, queue.due_chunks()) == (1, chunks[2:])
    assert queue.deliver() == chunks[2:]
    assert queue.deliver() is None
    assert queue.due == 2


def test_chunks_take_the_place_of_another() -> None:
    """The others stay in order, and the one replaced is obsolete."""
    queue, chunks = taken_up(make_step(0), make_step(*range(6)), task_rows=2)
    chunks[0].finish()
    queue.deliver()
    halves = [make_chunk(1, 2, first=2), make_chunk(1, 3, first=3)]
    queue.replace(chunks[2], halves)
    assert list(queue.chunks()) == [chunks[1], *halves, chunks[3]]
    assert [chunk.obsolete for chunk in chunks] == [False, False, True, False]


def test_an_abandoned_queue_has_no_chunks() -> None:
    """All of them are obsolete."""
    queue, chunks = taken_up(make_step(0), make_step(1))
    queue.abandon()
    assert list(queue.chunks()) == []
    assert all(chunk.obsolete for chunk in chunks)


def test_outputs_are_those_of_chunks_with_a_task() -> None:
    """The bytes of the step due are its charges and outputs; task 0 is a task."""
    queue, chunks = taken_up(make_step(*range(6)), make_step(0), task_rows=2)
    for chunk, task in ((chunks[0], 0), (chunks[3], 7)):
        chunk.finish()
        chunk.task, chunk.index, chunk.output_bytes = task, 0, 100
    chunks[1].charge = 20
    assert queue.with_output() == [chunks[0], chunks[3]]
    assert queue.due_bytes() == 120


def test_invariants_of_the_queue_are_checked() -> None:
    """A ready chunk is offered, and each row is in one chunk."""
    queue, chunks = taken_up(make_step(0, 1))
    chunks[0].state = ChunkState.WAITING
    queue.validate()
    other = chunks[0].select(np.array([True, True]), 0)
    queue.replace(chunks[0], [other])
    with pytest.raises(AssertionError):
        queue.validate()
    other.missing = 1
    queue.validate()
    other.rows = np.array([0, 2])
    with pytest.raises(AssertionError, match="each row is in one chunk"):
        queue.validate()
