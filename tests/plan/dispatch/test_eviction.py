"""Eviction: what fits `max_bytes`, to the byte, and which blocks go."""

from __future__ import annotations

import pytest

from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.chunks import Chunk
from rayingest.plan.dispatch.eviction import Eviction
from tests.support.dispatch_script import Script, make_step


def full(*sizes: int, rows: int = 2, **limits: int) -> tuple[Script, Eviction]:
    """Return a state with all these blocks in the store, where step i needs block i.

    No decoder has joined. A step takes 10 bytes a row.
    """
    script = Script([*sizes, 50], read_blocks=1, **limits)
    script.join(decoders=0)
    script.start(*(make_step(*[number] * rows) for number in range(len(sizes))))
    for task, nbytes in enumerate(sizes):
        script.read(task, nbytes)
    return script, Eviction(script.state)


def chunk_of(script: Script, step: int) -> Chunk:
    """Return the only chunk of a step."""
    return [*script.state.queue.chunks()][step]


@pytest.mark.parametrize(("max_bytes", "fits"), [(340, True), (339, False)])
def test_an_output_of_a_later_step_leaves_room_for_all_blocks_and_a_step(
    max_bytes: int, fits: bool
) -> None:
    """300 bytes of blocks, 20 of the later step, and 20 of the step due."""
    script, eviction = full(100, 100, 100, max_bytes=max_bytes)
    assert eviction.fits_output(chunk_of(script, 1)) is fits
    assert script.counters["bytes_in_flight"] == 300  # nothing is evicted


@pytest.mark.parametrize(("max_bytes", "fits"), [(347, True), (346, False)])
def test_released_bytes_and_later_outputs_take_room_too(max_bytes: int, fits: bool) -> None:
    """4 bytes are released, and 3 are of a later step."""
    script, eviction = full(100, 100, 100, max_bytes=max_bytes, inline_bytes=1)
    script.state.ledger.release(4)
    script.state.ledger.begin_decode(3)
    assert eviction.fits_output(chunk_of(script, 1)) is fits


@pytest.mark.parametrize(("max_bytes", "fits"), [(140, True), (139, False)])
def test_where_no_block_is_in_the_store_room_for_the_largest_stays(
    max_bytes: int, fits: bool
) -> None:
    """It may be read next."""
    script, eviction = full(100, 40, 60, max_bytes=1000)
    script.state.ledger.max_bytes = max_bytes
    script.state.evict({0: 100, 1: 40, 2: 60})
    assert eviction.fits_output(chunk_of(script, 1)) is fits


@pytest.mark.parametrize(
    ("max_bytes", "dropped"), [(320, ()), (319, (2,)), (220, (2,)), (219, (2, 1)), (120, (2, 1))]
)
def test_the_output_of_the_step_due_displaces_the_blocks_needed_latest(
    max_bytes: int, dropped: tuple[int, ...]
) -> None:
    """As many as it needs; its own block stays."""
    script, eviction = full(100, 100, 100)
    script.state.ledger.max_bytes = max_bytes
    assert eviction.fits_output(chunk_of(script, 0))
    drops = [command.blocks for command in script.state.take_commands()]
    assert drops == ([dropped] if dropped else [])
    assert script.state.counters["blocks_dropped"] == len(dropped)


def test_the_output_of_the_step_due_waits_for_bytes_that_are_evicted() -> None:
    """It fits when the store has freed them; meanwhile no more is evicted."""
    script, eviction = full(100, 100, 100, inline_bytes=1)
    script.state.ledger.max_bytes = 319
    chunk = chunk_of(script, 0)
    assert not eviction.fits_output(chunk)
    assert script.state.take_commands() == [ev.Drop((2,)), ev.ReportFreed(100)]
    assert not eviction.fits_output(chunk)
    assert script.state.take_commands() == []
    script.state.ledger.free(100)
    assert eviction.fits_output(chunk)


def test_a_single_block_is_tried_in_the_room_there_is_until_its_size_is_known() -> None:
    """Then the stream fails with the bytes that would suffice."""
    script, eviction = full(100)
    script.state.ledger.max_bytes = 119
    chunk = chunk_of(script, 0)
    assert eviction.fits_output(chunk)
    assert not script.state.failed
    chunk.measured_bytes = 21
    assert eviction.expected_bytes(chunk) == 21
    assert not eviction.fits_output(chunk)
    # 9/8 of the largest block and the batch: 1.125 * (100 + 21) = 136.125
    assert script.state.take_commands() == [
        ev.Fail(
            "max_bytes=119 is too small for one block of 100 bytes and one batch of 21 bytes; "
            "set max_bytes to 137 or more",
            (0,),
        )
    ]


def test_a_chunk_of_several_blocks_is_never_tried_in_too_little_room() -> None:
    """It is split instead (rule 3)."""
    script = Script([100, 100])
    script.join(decoders=0)
    script.start(make_step(0, 1))
    script.read(0, 100)
    script.read(1, 100)
    script.state.ledger.max_bytes = 219
    eviction, chunk = Eviction(script.state), chunk_of(script, 0)
    assert eviction.is_stuck(chunk)
    assert not eviction.fits_output(chunk)
    script.state.ledger.max_bytes = 220
    assert eviction.fits_output(chunk)


@pytest.mark.parametrize(("max_bytes", "fits"), [(220, True), (219, False)])
def test_the_step_due_may_take_the_room_of_later_outputs(max_bytes: int, fits: bool) -> None:
    """These are given up: its blocks take 200 bytes, and its output takes 20."""
    script = Script([100, 100], read_blocks=1)
    script.join(decoders=0)
    script.start(make_step(0, 1), make_step(1))
    script.read(0, 100)
    script.read(1, 100)
    state, (due, later) = script.state, script.state.queue.chunks()
    state.cache.stop_waiting(later)
    later.finish()
    later.task, later.index, later.output_bytes = 7, 0, 9
    state.ledger.add_outputs(7, [9], 0)
    state.ledger.max_bytes = max_bytes
    assert Eviction(state).fits_output(due) is fits
    assert state.take_commands() == [ev.Discard(7, (0,))]


@pytest.mark.parametrize("reason", ["task", "decoding", "released"])
def test_nothing_is_given_up_while_room_may_come(reason: str) -> None:
    """A task runs, or bytes are being freed."""
    script, eviction = full(100, 100)
    chunk, state = chunk_of(script, 0), script.state
    if reason == "task":
        state.workers.begin(state.workers.workers["r0"], (50,), blocks=(2,))
    elif reason == "decoding":
        state.ledger.begin_decode(1)
    else:
        state.ledger.released = 1
    assert not eviction.is_stuck(chunk)
    assert state.take_commands() == []


@pytest.mark.parametrize(("inline_bytes", "done"), [(1 << 60, True), (1, False)])
@pytest.mark.parametrize(("useless", "kept"), [(0, True), (1, False)])
def test_all_that_the_step_due_does_not_need_is_given_up(
    inline_bytes: int, done: bool, useless: int, kept: bool
) -> None:
    """Blocks, outputs of later steps, and those of the step due that share an object for nothing.

    It is done at once where the store frees bytes at once.
    """
    script, eviction = full(100, 100, 100, inline_bytes=inline_bytes)
    state, (due, later, last) = script.state, script.state.queue.chunks()
    for chunk, task, sizes in ((due, 7, [20, 4]), (later, 8, [20])):
        state.cache.stop_waiting(chunk)
        chunk.finish()
        chunk.task, chunk.index, chunk.output_bytes = task, 0, 20
        state.ledger.add_outputs(task, sizes[: 1 + useless], useless if chunk is due else 0)
    assert eviction.is_stuck(last) is done
    assert (due.task, later.task) == (7 if kept else -1, -1)
    drops = [c for c in state.take_commands() if isinstance(c, ev.Drop | ev.Discard)]
    assert drops == [ev.Drop((1, 0)), *([] if kept else [ev.Discard(7, (0,))]), ev.Discard(8, (0,))]


@pytest.mark.parametrize(("max_bytes", "over"), [(250, 0), (249, 1), (251, -1)])
def test_a_read_leaves_room_for_the_output_of_a_step(max_bytes: int, over: int) -> None:
    """100 bytes in the store, 7 released, 3 of a later step, 120 to read, and 20 of the step."""
    script = Script([100, 120], max_bytes=max_bytes, inline_bytes=1)
    script.join(readers=0, decoders=0)
    script.start(make_step(0, 0), make_step(1, 1))
    ledger = script.state.ledger
    ledger.add_block(100)
    ledger.release(7)
    ledger.begin_decode(3)
    assert Eviction(script.state).over_budget(script.state.cache.blocks[1]) == over


@pytest.mark.parametrize(
    ("max_bytes", "dropped"), [(370, ()), (369, (3,)), (270, (3,)), (269, (3, 2))]
)
def test_a_block_that_is_needed_sooner_displaces_those_needed_latest(
    max_bytes: int, dropped: tuple[int, ...]
) -> None:
    """The block needed first was lost. It is read again, in 50 bytes, beside the others."""
    script, eviction = full(50, 100, 100, 100)
    script.state.cache.remove(script.state.cache.blocks[0])
    script.state.ledger.max_bytes = max_bytes
    assert eviction.make_room(script.state.cache.blocks[0])
    drops = [command.blocks for command in script.state.take_commands()]
    assert drops == ([dropped] if dropped else [])


def test_no_block_displaces_one_that_is_needed_sooner() -> None:
    """Where those needed later do not suffice, none is evicted."""
    script, eviction = full(100, 50, 100)
    script.state.cache.remove(script.state.cache.blocks[1])
    script.state.ledger.max_bytes = 169
    assert not eviction.make_room(script.state.cache.blocks[1])
    assert script.state.take_commands() == []


def test_room_is_made_for_all_absent_blocks_of_the_chunk() -> None:
    """Three of 50 bytes: two blocks of 100 go, though one suffices for the first."""
    script = Script([50, 50, 50, 100, 100, 100], read_blocks=1)
    script.join(decoders=0)
    script.start(make_step(0, 1, 2), *map(make_step, (3, 4, 5)))
    for task, nbytes in enumerate((50, 50, 50, 100, 100, 100)):
        script.read(task, nbytes)
    blocks = script.state.cache.blocks
    for number in range(3):
        script.state.cache.remove(blocks[number])
    script.state.ledger.max_bytes = 300 + 30  # the blocks of later steps, and the step due
    eviction = Eviction(script.state)
    assert eviction.make_room(blocks[0])
    assert [c.blocks for c in script.state.take_commands()] == [(5, 4)]
