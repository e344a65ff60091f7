"""The moves of a state change all parts that know a chunk or a block."""

from __future__ import annotations

import numpy as np
import pytest

from rayingest.errors import ConfigError, DataError
from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.chunks import Chunk, ChunkState
from rayingest.plan.dispatch.limits import Limits
from rayingest.plan.dispatch.state import State
from rayingest.plan.dispatch.step_queue import StepQueue
from tests.support.dispatch_script import make_chunk, make_step

BAD = DataError("not an image")


def taken_up(*steps: ev.StepWork, inline_bytes: int = 1) -> tuple[State, list[Chunk]]:
    """Return a state that has taken up these steps, and their chunks, which wait."""
    state = State(np.full(9, 100), Limits(max_bytes=1000, inline_bytes=inline_bytes), 10)
    state.queue = StepQueue(iter(steps), state.pace, whole_steps=True)
    chunks = []
    for _ in steps:
        for chunk, expires in state.queue.take_up():
            state.wait(chunk, expires)
            chunks.append(chunk)
    state.validate()
    return state, chunks


def bring(state: State, number: int, nbytes: int = 100) -> None:
    """Have a block read."""
    block = state.cache.blocks[number]
    state.cache.end_read(number, state.cache.begin_read(block))
    for chunk in state.cache.arrive(block, nbytes):
        state.queue.offer(chunk)


def finish(state: State, chunk: Chunk, task: int, nbytes: int) -> None:
    """Have a ready chunk decoded by a task of its own."""
    state.cache.stop_waiting(chunk)
    chunk.finish()
    chunk.task, chunk.index, chunk.output_bytes = task, 0, nbytes
    state.ledger.add_outputs(task, [nbytes], 0)


def test_a_new_state_has_done_nothing() -> None:
    """All counters are 0, and nothing is ordered."""
    state, _ = taken_up()
    assert state.counters == {
        "reads": 0,
        "blocks_read": 0,
        "decodes": 0,
        "retries": 0,
        "hedges": 0,
        "blocks_lost": 0,
        "blocks_dropped": 0,
    }
    assert (state.untaken, state.failed, state.find_replacement) == (0, False, None)
    assert state.take_commands() == []


def test_commands_are_taken_once_and_in_order() -> None:
    """A stream fails once; nothing is ordered for no items and no blocks."""
    state, _ = taken_up()
    first, second = ev.Fail("first", ()), ev.Fail("second", ())
    state.discard(3, iter([1, 0]))
    state.discard(4, [])
    state.drop({})
    state.fail(first)
    state.fail(second)
    assert state.failed
    assert state.take_commands() == [ev.Discard(3, (1, 0)), first]
    assert state.take_commands() == []


def test_evicted_blocks_are_dropped_and_counted() -> None:
    """Each block is an object of its own, so each is reported as freed."""
    state, (chunk,) = taken_up(make_step(0, 1, 2))
    for number in range(3):
        bring(state, number, 50 + number)
    state.evict({2: 52, 0: 50})
    assert state.take_commands() == [ev.Drop((2, 0)), ev.ReportFreed(52), ev.ReportFreed(50)]
    assert state.counters["blocks_dropped"] == 2
    assert (state.ledger.resident, state.ledger.released) == (51, 102)
    assert chunk.missing == 2
    state.validate()


def test_only_useless_blocks_are_dropped() -> None:
    """A block that no chunk and no later step needs; one that was never read is only forgotten."""
    state, chunks = taken_up(
        make_step(0, until=1), make_step(1, until=1), make_step(2, until=9), inline_bytes=1000
    )
    bring(state, 0)
    bring(state, 2)
    for chunk in chunks:
        state.cache.stop_waiting(chunk)
        chunk.finish()
    state.drop_useless([0, 1, 2, 0])
    assert state.take_commands() == [ev.Drop((0,))]
    assert set(state.cache.blocks) == {2}
    state.drop_useless([1])
    assert state.take_commands() == []


def test_a_decode_is_charged_with_what_is_free_at_most() -> None:
    """Two attempts at a chunk are charged separately."""
    state, (chunk,) = taken_up(make_step(0))
    bring(state, 0, 900)
    assert state.begin_attempt(chunk, 60) == 60
    assert state.begin_attempt(chunk, 60) == 40
    assert (chunk.attempts, chunk.charge, state.ledger.decoding) == (2, 100, 100)
    assert state.cache.blocks[0].pins == 2
    state.end_attempt(chunk, 60)
    assert (chunk.attempts, chunk.charge, state.ledger.decoding) == (1, 40, 40)
    assert state.cache.blocks[0].pins == 1


def test_an_evicted_output_is_discarded_and_its_chunk_waits_again() -> None:
    """It is decoded in a task by itself from then on. Its blocks stay for its step."""
    state, (chunk,) = taken_up(make_step(0, until=1))
    bring(state, 0)
    finish(state, chunk, task=7, nbytes=30)
    state.drop_useless([0])
    state.take_commands()
    state.redo(chunk)
    assert state.take_commands() == [ev.Discard(7, (0,)), ev.ReportFreed(30)]
    assert (chunk.state, chunk.alone) == (ChunkState.WAITING, True)
    assert (chunk.task, chunk.index, chunk.output_bytes) == (-1, -1, 0)
    assert state.cache.blocks[0].expires == 1
    assert state.cache.next_wanted() is state.cache.blocks[0]
    state.validate()


@pytest.mark.parametrize(
    ("error", "replaceable"),
    [(BAD, True), (DataError("late", transient=True), False), (ConfigError("no column"), False)],
)
def test_only_a_lasting_error_of_the_data_is_replaced(error: Exception, replaceable: bool) -> None:
    """And only where there are replacements."""
    state, _ = taken_up()
    assert not state.is_replaceable(error)
    state.find_replacement = lambda *_: error
    assert state.is_replaceable(error) is replaceable


def test_bad_rows_are_replaced_one_by_one() -> None:
    """The good rows are one chunk, the replacements another, and each error one more."""
    state, (chunk,) = taken_up(make_step(0, 0, 0, 0, 0, cost=10))
    asked = []
    none_left = DataError("none left")

    def find(step: int, row: int, error: DataError, unreadable: bool) -> object:
        asked.append((step, row, error, unreadable))
        return {1: (5, 30), 2: none_left, 4: (5, 40)}[row]

    state.find_replacement = find
    state.cache.stop_waiting(chunk)
    chunk.crashes = 2
    rest = state.replace_rows(chunk, dict.fromkeys((1, 2, 4), BAD))
    assert asked == [(0, row, BAD, False) for row in (1, 2, 4)]
    assert [c.rows.tolist() for c in state.queue.due_chunks()] == [[0, 3], [2], [1, 4]]
    good, lost, replacements = state.queue.due_chunks()
    assert (good, good.crashes) == (rest, 2)
    assert (lost.state, lost.error, lost.blocks) == (ChunkState.DONE, none_left, ())
    assert (replacements.state, replacements.blocks) == (ChunkState.WAITING, (5,))
    assert state.cache.blocks[5].expires == 40
    assert [c.row_cost for c in (good, lost, replacements)] == [2.0] * 3
    assert chunk.obsolete


def test_a_chunk_of_bad_rows_alone_has_no_rest() -> None:
    """It becomes a chunk of replacements; the latest of their expiries holds."""
    state, (chunk,) = taken_up(make_step(0, 0))
    state.find_replacement = lambda step, row, *_: (5, 40 - row)
    state.cache.stop_waiting(chunk)
    assert state.replace_rows(chunk, {0: BAD, 1: BAD}) is None
    (replacements,) = state.queue.due_chunks()
    assert replacements.rows.tolist() == [0, 1]
    assert state.cache.blocks[5].expires == 40
    state.validate()


def test_rows_of_a_broken_block_are_replaced_and_the_others_wait() -> None:
    """The replacement gets the error of the whole block."""
    state, chunks = taken_up(make_step(3, 3))
    state.cache.begin_read(state.cache.blocks[3])
    state.cache.end_read(3, 100)
    for chunk in state.cache.break_off(state.cache.blocks[3], BAD):
        state.wait(chunk)
    assert chunks[0].error is BAD  # without replacements, the chunk has the error
    asked = []
    state.find_replacement = lambda *args: asked.append(args) or (6, 50)
    chunk = make_chunk(0, 3, 4, 3)
    state.queue.replace(chunks[0], [chunk])
    state.wait(chunk, [100, 100])
    assert asked == [(0, 0, BAD, True), (0, 2, BAD, True)]
    rest, replacements = state.queue.due_chunks()
    assert (rest.rows.tolist(), rest.blocks, rest.missing) == ([1], (4,), 1)
    assert (replacements.rows.tolist(), replacements.blocks) == ([0, 2], (6,))
    state.validate()


def test_the_parts_of_a_split_chunk_wait_in_its_place() -> None:
    """The chunk waits for nothing any more."""
    state, (chunk,) = taken_up(make_step(0, 1))
    first = np.array([True, False])
    parts = [chunk.select(rows, 0) for rows in (first, ~first)]
    state.split(chunk, parts)
    assert list(state.queue.chunks()) == parts
    assert [list(state.cache.blocks[n].waiting.values()) for n in (0, 1)] == [[p] for p in parts]
    state.validate()


def test_a_state_whose_parts_disagree_is_not_valid() -> None:
    """Each change is made in one part alone."""
    changes = (
        lambda state, chunk: state.ledger.begin_read(1),
        lambda state, chunk: state.ledger.begin_decode(1),
        lambda state, chunk: state.ledger.add_outputs(3, [5], 0),
        lambda state, chunk: state.cache.pin(chunk),
        lambda state, chunk: state.cache.stop_waiting(chunk),
        lambda state, chunk: setattr(chunk, "missing", 1),
        lambda state, chunk: setattr(chunk, "attempts", 1),
        lambda state, chunk: setattr(state, "untaken", -1),
        lambda state, chunk: setattr(state.cache.blocks[0], "readers", 1),
    )
    for change in changes:
        state, (chunk,) = taken_up(make_step(0))
        bring(state, 0)
        state.validate()
        change(state, chunk)
        with pytest.raises(AssertionError):
            state.validate()
