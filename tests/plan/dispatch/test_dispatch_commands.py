"""Dispatch begins and delivers exactly what its limits allow: each boundary from both sides."""

from __future__ import annotations

import pytest

from rayingest.errors import DataError
from rayingest.plan.dispatch import events as ev
from tests.support.dispatch_script import Script, make_step, output, part


def reads(commands: list[ev.Command]) -> list[tuple[int, ...]]:
    """Return the blocks of each read."""
    return [command.blocks for command in commands if isinstance(command, ev.Read)]


def decodes(commands: list[ev.Command]) -> list[list[tuple[int, int]]]:
    """Return the parts of each decode as (step, number of rows)."""
    found = [command.parts for command in commands if isinstance(command, ev.Decode)]
    return [[(one.step, len(one.rows)) for one in parts] for parts in found]


def delivered(commands: list[ev.Command]) -> list[int]:
    """Return the steps that are delivered."""
    return [command.step for command in commands if isinstance(command, ev.Deliver)]


# Steps


def test_at_most_32_steps_are_taken_up_at_once() -> None:
    """The next event takes up the next ones, until `read_ahead` steps are."""
    script = Script([1], read_ahead=70, decode_ahead=70)
    horizons = []
    script.start(*[make_step(0)] * 100)
    for _ in range(3):
        horizons.append(script.state.queue.horizon)
        script.tell()
    assert horizons == [32, 64, 70]


@pytest.mark.parametrize(
    ("decoders", "rows", "horizon"),
    [
        (0, 2, 4),  # `decode_ahead` is 3, which is more than a task of 2 rows has steps
        (0, 5, 6),  # one task beyond the decoders has 5 steps of one row
        (2, 5, 16),  # three tasks
    ],
)
def test_no_step_is_taken_up_beyond_those_to_decode_while_blocks_are_wanted(
    decoders: int, rows: int, horizon: int
) -> None:
    """Enough steps for a task of each decoder and one more."""
    script = Script([10] * 40, decode_ahead=3, read_ahead=40, first_task_rows=rows)
    script.join(readers=0, decoders=decoders)
    script.start(*map(make_step, range(40)))
    assert script.state.queue.horizon == horizon


# Delivery


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"ready_batches": 2, "max_ready_batches": 2}, 2),
        ({"ready_batches": 1, "max_ready_batches": 4}, 4),
        ({"ready_batches": 1, "ready_bytes": 30}, 3),
        ({"ready_batches": 1, "ready_bytes": 29}, 2),
        ({"ready_batches": 3, "ready_bytes": 29}, 3),
    ],
)
def test_batches_lie_ready_up_to_their_number_and_bytes(limits: dict[str, int], count: int) -> None:
    """`ready_batches` in any case; more while they take at most `ready_bytes`."""
    script = Script([100], **limits)
    script.join()
    script.start(*[make_step(0)] * 5)
    script.read(0, 100)
    assert delivered(script.decode(1, *[10] * 5)) == [*range(count)]
    assert delivered(script.tell(ev.BatchTaken())) == [count]


def test_errors_alone_are_delivered_up_to_the_number_of_ready_batches() -> None:
    """The size of a batch is not known yet."""
    script = Script([100], measured=False, ready_batches=2)
    script.join()
    script.start(*[make_step(0)] * 3)
    assert delivered(script.tell(ev.ReadFailed(0, DataError("broken"), final=True))) == [0, 1]


def test_a_step_with_several_errors_is_delivered_with_that_of_its_first_row() -> None:
    """Its good rows are delivered too."""
    script = Script([100], first_task_rows=2)
    script.join(slots=3)
    script.start(make_step(*[0] * 6))
    script.read(0, 100)
    errors = [DataError(str(i)) for i in range(2)]
    parts = [ev.PartDone(20), ev.PartDone(1, errors[0]), ev.PartDone(1, errors[1])]
    script.tell(ev.DecodeDone(3, (parts[2],), 0.0), ev.DecodeDone(2, (parts[1],), 0.0))
    (_, deliver) = script.tell(ev.DecodeDone(1, (parts[0],), 0.0))
    assert deliver == ev.Deliver(0, (output(1, 0, 0, 1),), errors[0], row=2)


# Why the step due is not done


def test_without_a_step_nothing_is_waited_for() -> None:
    """Before the start and after the last step."""
    script = Script([100])
    assert script.dispatch.stall_cause() == ""
    script.join()
    script.start(make_step(0))
    script.read(0, 100)
    script.decode(1, 10)
    assert script.dispatch.stall_cause() == ""


def test_the_step_due_waits_for_workers_reads_and_decodes() -> None:
    """A reader first, then its read, then a decoder, then its decode."""
    script = Script([100])
    causes = []
    for change in (
        lambda: script.start(make_step(0)),
        lambda: script.join(decoders=0),
        lambda: script.read(0, 100),
        lambda: script.join(readers=0),
    ):
        change()
        causes.append(script.dispatch.stall_cause())
    assert causes == ["workers", "read", "workers", "decode"]


def test_a_step_waits_for_a_read_while_other_rows_of_it_are_decoded() -> None:
    """Or for the decode, once all its blocks are there, though another decoder is idle."""
    script = Script([100, 100], read_blocks=1, first_task_rows=1)
    script.join(decoders=2)
    script.start(make_step(0, 1))
    assert decodes(script.read(0, 100)) == [[(0, 1)]]
    assert script.dispatch.stall_cause() == "read"
    script.decode(1, 10)
    assert decodes(script.read(2, 100)) == [[(0, 1)]]
    assert script.dispatch.stall_cause() == "decode"


def test_the_step_due_waits_for_room_while_a_reader_is_idle() -> None:
    """Its block is wanted, and the store has not freed what is in its place."""
    script = Script([600, 600], inline_bytes=1)
    script.join()
    script.start(make_step(0), make_step(1))
    script.read(0, 600)
    script.decode(1, 10)
    assert script.dispatch.stall_cause() == "room"
    script.tell(ev.Freed(600))
    assert script.dispatch.stall_cause() == "read"


def test_the_step_due_waits_for_a_read_while_another_block_has_no_room() -> None:
    """The reader is busy."""
    script = Script([600, 600])
    script.join()
    script.start(make_step(0, 1))
    assert script.dispatch.stall_cause() == "read"


def test_a_ready_chunk_waits_for_room_while_a_decoder_is_idle() -> None:
    """While the store may free bytes it waits; then it is tried in the room there is."""
    script = Script([600], inline_bytes=1, read_ahead=1)
    script.join()
    script.start(make_step(*[0] * 50))
    script.state.release(100)
    assert decodes(script.read(0, 600)) == []
    assert script.dispatch.stall_cause() == "room"
    assert decodes(script.tell(ev.Freed(100))) == [[(0, 50)]]


# Decodes


def decoding(*rows: int, **limits: int) -> tuple[Script, list[ev.Command]]:
    """Return a script and the commands once block 0 is there, which all steps need."""
    script = Script([100], **limits)
    script.join()
    script.start(*(make_step(*[0] * count) for count in rows))
    return script, script.read(0, 100)


def test_a_task_has_as_many_steps_as_its_rows_hold() -> None:
    """The step that would exceed them begins the next task."""
    assert decodes(decoding(2, 1, 1, first_task_rows=4)[1]) == [[(0, 2), (1, 1), (2, 1)]]
    assert decodes(decoding(2, 1, 2, first_task_rows=4)[1]) == [[(0, 2), (1, 1)]]


@pytest.mark.parametrize(("max_bytes", "rows"), [(240, 3), (239, 2), (79, 1)])
def test_all_tasks_take_a_quarter_of_the_budget(max_bytes: int, rows: int) -> None:
    """A task for each decoder and one more: 2 tasks of 3 rows of 10 bytes take 240 / 4."""
    commands = decoding(1, 1, 1, 1, max_bytes=max_bytes)[1]
    assert decodes(commands) == [[(step, 1) for step in range(rows)]]


def test_a_step_of_more_rows_is_one_task_whatever_its_share() -> None:
    """A task may have as many rows as the largest step."""
    assert decodes(decoding(5, max_bytes=240)[1]) == [[(0, 5)]]


def test_the_first_decode_may_use_all_room_and_is_alone() -> None:
    """Its charge is a guess. Nothing is read or decoded until it ends."""
    script = Script([100, 100], measured=False, first_task_rows=1, read_blocks=1)
    script.join(slots=2)
    script.start(make_step(0), make_step(0), make_step(1))
    assert script.read(0, 100) == [
        ev.Read(1, "r0", (1,), budget=100, step=2),
        ev.Decode(2, "d0", (part(0, 0),), (0,), budget=1000 - 200),
    ]
    assert script.read(1, 100) == []
    assert decodes(script.decode(2, 10)) == [[(1, 1)], [(2, 1)]]


def test_the_first_decode_of_an_earlier_start_delays_no_other() -> None:
    """Its chunk is obsolete."""
    script = Script([100], measured=False)
    script.join(slots=2)
    script.start(make_step(0))
    assert decodes(script.read(0, 100)) == [[(0, 1)]]
    assert decodes(script.start(make_step(0, 0))) == [[(0, 2)]]


def test_no_step_is_decoded_too_far_ahead() -> None:
    """`decode_ahead` steps behind the one due are; a task begins only where enough are left."""
    script = Script([100], decode_ahead=3, read_ahead=9, first_task_rows=1, ready_batches=0)
    script.join(slots=9)
    script.start(*[make_step(0)] * 9)
    assert decodes(script.read(0, 100)) == [[(step, 1)] for step in range(9)]
    script = Script([100], decode_ahead=3, read_ahead=9, first_task_rows=1)
    script.join()
    script.start(*[make_step(0)] * 9)
    script.read(0, 100)
    begun = [decodes(script.decode(task, 10)) for task in range(1, 4)]
    assert begun == [[[(1, 1)]], [[(2, 1)]], [[(3, 1)]]]


def decoded_until_the_loop_stops(pass_steps: int, taken: int, **limits: int) -> int:
    """Return how many steps are decoded until a loop that takes `taken` batches stops."""
    passes = taken // pass_steps + 3
    steps = [
        make_step(0, pass_end=(number + 1) * pass_steps)
        for number in range(passes)
        for _ in range(pass_steps)
    ]
    script = Script([100], max_bytes=1 << 30, read_ahead=100, **limits)
    script.join()
    script.start(*steps)
    decoding = decodes(script.read(0, 100))
    task, decoded = 0, 0
    while decoding or taken:
        if decoding:
            task, parts = task + 1, len(decoding.pop(0))
            decoded += parts
            decoding += decodes(script.decode(task, *[10] * parts))
        else:
            taken -= 1
            decoding += decodes(script.tell(ev.BatchTaken()))
    return decoded


@pytest.mark.parametrize(
    ("pass_steps", "taken", "limits", "decoded"),
    [
        (20, 20, {}, 26),  # 2 that lie ready and 4 that are decoded ahead
        (20, 21, {}, 46),  # the loop has begun the next pass
        (20, 20, {"ready_batches": 1, "decode_ahead": 2}, 23),
        (20, 20, {"copied_ahead": 2}, 28),
        (20, 22, {"copied_ahead": 2}, 28),  # copies to the device, not yet the loop
        (20, 23, {"copied_ahead": 2}, 48),
        (80, 80, {}, 90),  # 1/8 of the next pass
        (10, 10, {}, 15),  # half of the next pass
        (3, 3, {}, 5),
        (1, 1, {}, 2),
        (1, 30, {}, 31),
    ],
)
def test_little_is_decoded_of_a_pass_that_the_loop_may_never_begin(
    pass_steps: int, taken: int, limits: dict[str, int], decoded: int
) -> None:
    """What lies ready or is decoded ahead in any case, or 1/8 of the pass; at most half of it."""
    assert decoded_until_the_loop_stops(pass_steps, taken, **limits) == decoded


def test_a_loop_that_has_all_batches_gets_the_step_due_of_any_pass() -> None:
    """Batches that were copied ahead do not count as received, and yet no loop waits for ever."""
    assert decoded_until_the_loop_stops(2, 60, copied_ahead=5) >= 60


# Reads


@pytest.mark.parametrize(
    ("limits", "blocks"),
    [
        ({}, (1, 2, 3)),
        ({"read_blocks": 2}, (1, 2)),
        ({"read_bytes": 200}, (1, 2)),
        ({"read_bytes": 199}, (1,)),
        ({"read_bytes": 1}, (1,)),
    ],
)
def test_a_read_has_blocks_up_to_its_number_and_bytes(
    limits: dict[str, int], blocks: tuple[int, ...]
) -> None:
    """The first read has one block, since no size is known."""
    script = Script([100] * 4, **limits)
    script.join()
    assert reads(script.start(*map(make_step, range(4)))) == [(0,)]
    assert reads(script.read(0, 100)) == [blocks]
    assert script.dispatch.stats()["reads"] == 2


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"min_reads": 2, "reader_bytes": 1}, 2),
        ({"min_reads": 1, "reader_bytes": 300}, 3),
        ({"min_reads": 1, "reader_bytes": 301}, 4),
        ({"min_reads": 9, "reader_bytes": 1}, 5),
    ],
)
def test_a_reader_runs_its_least_reads_and_more_while_they_are_small(
    limits: dict[str, int], count: int
) -> None:
    """Each read is of 100 bytes; the reader has 5 slots."""
    script = Script([100] * 9, read_blocks=1, **limits)
    script.join(slots=5)
    script.start(*map(make_step, range(9)))
    assert len(reads(script.read(0, 100))) == count


def test_a_block_that_failed_is_read_alone() -> None:
    """Neither does it join others, nor do others join it."""
    script = Script([100] * 4)
    script.join()
    script.start(*map(make_step, range(4)))
    assert reads(script.read(0, 100)) == [(1, 2, 3)]
    script.state.cache.blocks[3].tries = 1
    assert reads(script.read(2, 100)) == [(2,)]
    script.state.cache.blocks[3].tries = 0
    assert reads(script.tell(ev.ReadFailed(3, OSError(), final=False))) == [(2,)]


# Hedges


@pytest.mark.parametrize(("max_bytes", "hedges"), [(220, 1), (219, 0)])
def test_a_copy_of_a_task_is_begun_only_where_it_fits(max_bytes: int, hedges: int) -> None:
    """A copy that fills `max_bytes` does; nothing is evicted for it."""
    script = Script([100], max_bytes=max_bytes)
    script.join(decoders=2)
    script.start(make_step(*[0] * 6))
    script.read(0, 100)
    assert script.dispatch.charged_bytes == 160
    assert decodes(script.tell(ev.Overdue(1))) == [[(0, 6)]] * hedges
    assert script.dispatch.stats()["hedges"] == hedges
    assert script.tell(ev.Overdue(1)) == []


def test_nothing_is_hedged_without_another_worker() -> None:
    """A decoder copies no decode of its own; a reader does copy its read."""
    script = Script([100])
    script.join(slots=2)
    script.start(make_step(0))
    assert reads(script.tell(ev.Overdue(0))) == [(0,)]
    script.read(0, 100)
    assert script.tell(ev.Overdue(2), ev.Overdue(99)) == []
    assert script.dispatch.stats()["hedges"] == 1


def test_a_read_of_blocks_that_nobody_awaits_is_not_hedged() -> None:
    """Nor is any task once the stream has failed."""
    script = Script([100])
    script.join(readers=2)
    script.start(make_step(0))
    script.tell(ev.Overdue(0))
    script.read(0, 100)
    assert reads(script.tell(ev.Overdue(1))) == []
    script.state.fail(ev.Fail("", ()))
    script.tell()
    script.tell(ev.WorkerJoined("d1", "decoder", 1))
    assert script.tell(ev.Overdue(2)) == []


# In order


def test_blocks_in_order_are_read_by_one_reader_one_read_at_a_time() -> None:
    """The next read begins when the last one has ended."""
    script = Script([100] * 4, in_order=True, read_blocks=2)
    script.join(readers=2, slots=3)
    assert reads(script.start(*map(make_step, range(4)))) == [(0,)]
    assert script.tell(ev.Overdue(0)) == []
    assert script.read(0, 100)[-1] == ev.Read(2, "r0", (1, 2), budget=200, step=1)
    assert script.tell() == []
    assert script.read(2, 100)[-1] == ev.Read(4, "r0", (2, 3), budget=200, step=2)
