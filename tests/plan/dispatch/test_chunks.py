"""A chunk knows its place in the order, its blocks, and how far it is."""

from __future__ import annotations

import numpy as np
import pytest

from rayingest.plan.dispatch.chunks import FIRST, NEVER, Chunk, ChunkState
from tests.support.dispatch_script import make_chunk


def test_a_new_chunk_waits_for_nothing_and_nothing_happened_to_it() -> None:
    """Every count is 0, and it has no output and no error."""
    chunk = make_chunk(3, 5, 2, 5, first=4, row_cost=1.5)
    assert chunk.key == (3, 4)
    assert chunk.blocks == (2, 5)
    assert chunk.cost == 4.5
    assert chunk.state is ChunkState.WAITING
    counts = chunk.missing, chunk.attempts, chunk.charge, chunk.tries, chunk.crashes
    assert counts == (0, 0, 0, 0, 0)
    assert (chunk.task, chunk.index, chunk.output_bytes, chunk.measured_bytes) == (-1, -1, 0, 0)
    flags = chunk.timed_out, chunk.alone, chunk.obsolete, chunk.suspect, chunk.orphaned
    assert flags == (False,) * 5
    assert chunk.error is None
    chunk.validate()


def test_chunks_come_in_the_order_of_steps_and_rows() -> None:
    """`FIRST` comes before all of them, `NEVER` after."""
    chunks = [make_chunk(1, 0), make_chunk(0, 0, first=2), make_chunk(0, 0)]
    assert [chunk.key for chunk in sorted(chunks)] == [(0, 0), (0, 2), (1, 0)]
    assert not chunks[0] < chunks[0]
    assert FIRST < (0, 0)
    assert NEVER > (1 << 61, 1 << 61)


@pytest.mark.parametrize(("crashes", "suspect"), [(0, False), (1, True)])
def test_one_crash_makes_a_chunk_suspect(crashes: int, suspect: bool) -> None:
    """A suspect shares its task with no other chunk."""
    assert make_chunk(0, 0, crashes=crashes).suspect is suspect


@pytest.mark.parametrize(
    ("fields", "orphaned"),
    [
        ({"state": ChunkState.DECODING}, True),
        ({"state": ChunkState.DECODING, "attempts": 1}, False),
        ({"state": ChunkState.DECODING, "obsolete": True}, False),
        ({"state": ChunkState.WAITING}, False),
        ({"state": ChunkState.DONE}, False),
    ],
)
def test_a_chunk_is_orphaned_without_a_task_that_decodes_it(
    fields: dict[str, object], orphaned: bool
) -> None:
    """It must be needed and have begun."""
    assert make_chunk(0, 0, **fields).orphaned is orphaned


def test_chosen_rows_keep_what_happened_to_the_chunk_but_no_task() -> None:
    """The caller says how many crashes they bear."""
    chunk = make_chunk(
        2, 7, 8, 9, first=3, row_cost=0.5, tries=2, crashes=3, timed_out=True, alone=True
    )
    chunk.state, chunk.attempts, chunk.charge, chunk.missing = ChunkState.DECODING, 1, 10, 1
    chosen = chunk.select(np.array([True, False, True]), crashes=1)
    assert chosen.rows.tolist() == [3, 5]
    assert chosen.row_blocks.tolist() == [7, 9]
    assert (chosen.step, chosen.key, chosen.cost) == (2, (2, 3), 1.0)
    assert (chosen.tries, chosen.crashes, chosen.timed_out, chosen.alone) == (2, 1, True, True)
    assert (chosen.state, chosen.attempts, chosen.charge) == (ChunkState.WAITING, 0, 0)


def test_a_finished_chunk_is_done_with_its_error() -> None:
    """Without an error it has none, even if it had one."""
    chunk, error = make_chunk(0, 0), OSError("gone")
    chunk.finish(error)
    assert (chunk.state, chunk.error) == (ChunkState.DONE, error)
    chunk.finish()
    assert (chunk.state, chunk.error) == (ChunkState.DONE, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"obsolete": True},
        {"attempts": -1},
        {"attempts": 1, "charge": -1},
        {"charge": 1},
        {"state": ChunkState.DECODING},
        {"state": ChunkState.DONE, "task": 0},
        {"state": ChunkState.DONE, "index": 0},
        {"task": 0, "index": 0},
        {"state": ChunkState.DONE, "task": 0, "index": 0, "error": OSError()},
        {"state": ChunkState.DONE, "output_bytes": 1},
        {"error": OSError()},
    ],
)
def test_a_chunk_that_contradicts_itself_is_not_valid(fields: dict[str, object]) -> None:
    """Each case breaks one invariant."""
    chunk: Chunk = make_chunk(0, 0, **fields)
    with pytest.raises(AssertionError):
        chunk.validate()
