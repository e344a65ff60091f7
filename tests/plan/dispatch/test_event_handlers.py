"""Events change the state exactly: counters, charges, which tasks follow, and who is to blame."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rayingest.errors import DataError, DeadlySampleError
from rayingest.plan.dispatch import events as ev
from tests.support.dispatch_script import Script, make_step, output, part

BAD = DataError("not an image")
CRASHED, TIMED_OUT = ev.WorkerFailure.CRASHED, ev.WorkerFailure.TIMED_OUT


def reading(*blocks: int, **limits: int) -> Script:
    """Return a script in which task 0 reads block 0; each step takes a row of one block."""
    script = Script([100] * 8, **limits)
    script.join()
    script.start(*(make_step(block) for block in blocks))
    return script


def decoding(*rows: int, **limits: int) -> Script:
    """Return a script in which task 1 decodes steps of these rows of block 0."""
    script = Script([100] * 8, **limits)
    script.join()
    script.start(*(make_step(*[0] * count) for count in rows))
    script.read(0, 100)
    return script


# Illegal events


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (ev.BatchTaken(), "no delivered batch is left to take"),
        (ev.WorkerJoined("d0", "decoder", 1), "the worker's name must be new, and it needs a slot"),
        (ev.WorkerJoined("d9", "decoder", 0), "the worker's name must be new, and it needs a slot"),
        (ev.LimitRaised(999), "max_bytes is 1000, and cannot shrink"),
        (ev.Freed(-1), "0 released bytes are not free yet"),
        (ev.Freed(1), "0 released bytes are not free yet"),
        (ev.ReadDone(1, (5,)), "task 1 is a decode"),
        (ev.ReadFailed(1, BAD, final=True), "task 1 is a decode"),
        (ev.DecodeDone(2, (), 1.0), "task 2 is a read"),
        (ev.DecodeFailed(2, BAD), "task 2 is a read"),
        (ev.ReadDone(2, (5, 5)), "the read has 1 block\\(s\\), not 2"),
        (ev.ReadDone(2, (5,), (5,)), "the read has 1 block\\(s\\), not 2"),
        (ev.DecodeDone(1, (ev.PartDone(1),) * 2, 1.0), "the decode has 1 part\\(s\\), not 2"),
        (ev.DecodeDone(1, (), 1.0), "the decode has 1 part\\(s\\), not 0"),
        *(
            (
                ev.DecodeDone(1, (ev.PartDone(1, bad=tuple((p, BAD) for p in places)),), 1.0),
                "places of bad rows must ascend in \\[0, 3\\), not",
            )
            for places in ([3], [-1], [1, 0], [1, 1])
        ),
    ],
)
def test_an_event_that_cannot_happen_changes_nothing(event: ev.Event, reason: str) -> None:
    """Task 1 decodes a part of 3 rows, and task 2 reads a block."""
    script = Script([100] * 2, read_blocks=1)
    script.join()
    script.start(make_step(0, 0, 0), make_step(1))
    script.read(0, 100)
    assert set(script.state.workers.tasks) == {1, 2}
    before = script.counters
    with pytest.raises(ev.IllegalEventError, match=f"dispatch cannot take .*: {reason}"):
        script.tell(event)
    assert script.counters == before
    assert script.tell() == []


def test_a_raised_limit_lets_more_blocks_in() -> None:
    """Two blocks and an output of 10 bytes fit at first, and four blocks afterwards."""
    script = Script([100] * 4, max_bytes=220, read_blocks=1)
    script.join(readers=3)
    script.start(*map(make_step, range(4)))
    script.read(0, 100)
    more = script.tell(ev.LimitRaised(410))
    assert [command.blocks for command in more if isinstance(command, ev.Read)] == [(2,), (3,)]


def test_events_at_the_limit_are_legal() -> None:
    """All released bytes may be freed, and all rows of a part may be bad."""
    script = decoding(2, inline_bytes=1)
    bad = ((0, BAD), (1, BAD))
    script.tell(ev.DecodeDone(1, (ev.PartDone(7, BAD),), 1.0))
    assert script.dispatch.stats()["released_bytes"] == 7 + 100
    assert script.tell(ev.Freed(0), ev.Freed(107)) == []
    assert script.dispatch.stats()["released_bytes"] == 0
    script = decoding(2)
    script.state.find_replacement = lambda step, row, error, unreadable: error
    assert script.tell(ev.DecodeDone(1, (ev.PartDone(0, bad=bad),), 1.0)) == [
        ev.Discard(1, (0,)),
        ev.Drop((0,)),
        ev.Deliver(0, (), BAD, row=0),
    ]


# Starts and batches


def test_a_batch_that_is_taken_makes_room_for_the_next() -> None:
    """Two lie ready; the third is delivered when one is taken."""
    script = decoding(1, 1, 1, max_ready_batches=2)
    assert script.decode(1, 10, 10, 10) == [
        ev.Drop((0,)),
        ev.Deliver(0, (output(1, 0, 0),)),
        ev.Deliver(1, (output(1, 1, 0),)),
    ]
    assert script.state.untaken == 2
    assert script.tell(ev.BatchTaken()) == [ev.Deliver(2, (output(1, 2, 0),))]
    assert script.tell(ev.BatchTaken(), ev.BatchTaken()) == []
    assert script.state.untaken == 0


def test_a_new_start_releases_the_outputs_and_keeps_the_blocks() -> None:
    """Decodes of the old steps go on; the parts they bring are discarded."""
    script = Script([100], ready_batches=1, max_ready_batches=1, inline_bytes=1, read_ahead=3)
    script.join()
    script.start(*[make_step(0)] * 9)
    script.read(0, 100)
    assert script.decode(1, 10, 10, 10) == [ev.Deliver(0, (output(1, 0, 0),))]
    assert script.state.ledger.outputs == 30
    assert script.start(make_step(0)) == [
        ev.ReportFreed(30),
        ev.Decode(2, "d0", (part(0, 0),), (0,), budget=10),
    ]
    assert (script.state.untaken, script.state.ledger.outputs) == (0, 0)
    assert script.start(make_step(0)) == []
    assert script.decode(2, 11) == [
        ev.ReportFreed(11),
        ev.Discard(2, (0,)),
        ev.Decode(3, "d0", (part(0, 0),), (0,), budget=11),
    ]


# Reads


def test_a_read_that_ends_is_counted_by_its_blocks() -> None:
    """Blocks behind those it brought were left out, and are read again."""
    script = reading(0, 1, 2, 3)
    assert script.counters == {"reads": 1, "bytes_in_flight": 100}
    assert script.read(0, 100) == [
        ev.Decode(1, "d0", (part(0, 0),), (0,), budget=10),
        ev.Read(2, "r0", (1, 2, 3), budget=300, step=1),
    ]
    assert script.read(2, 90, left_out=[200]) == [ev.Read(3, "r0", (2, 3), budget=450, step=2)]
    assert script.counters == {
        "reads": 3,
        "blocks_read": 2,
        "decodes": 1,
        "bytes_in_flight": 100 + 10 + 90 + 450,
    }


def test_a_second_copy_of_a_block_is_discarded() -> None:
    """It counts as read, and its bytes are released."""
    script = reading(0, inline_bytes=1, min_reads=1)
    script.tell(ev.WorkerJoined("r1", "reader", 1))
    assert script.tell(ev.Overdue(0)) == [ev.Read(1, "r1", (0,), budget=900, step=0)]
    script.read(1, 80)
    assert script.read(0, 81) == [ev.ReportFreed(81), ev.Discard(0, (0,))]
    assert script.counters == {
        "reads": 2,
        "blocks_read": 2,
        "decodes": 1,
        "hedges": 1,
        "bytes_in_flight": 80 + 10 + 81,
        "released_bytes": 81,
    }


def test_blocks_of_a_failed_read_are_read_one_by_one() -> None:
    """Each of them counts as a retry and has used up a try."""
    script = reading(0, 1, 2)
    script.read(0, 100)
    assert script.tell(ev.ReadFailed(2, BAD, final=True)) == [
        ev.Read(3, "r0", (1,), budget=100, step=1)
    ]
    assert [script.state.cache.blocks[n].tries for n in (1, 2)] == [1, 1]
    assert script.read(3, 100) == [ev.Read(4, "r0", (2,), budget=100, step=2)]
    assert [script.state.cache.blocks[n].tries for n in (1, 2)] == [0, 1]
    assert script.dispatch.stats()["retries"] == 2


def test_a_final_error_of_one_block_breaks_it_and_delivers_the_error() -> None:
    """It is no retry."""
    script = reading(0)
    assert script.tell(ev.ReadFailed(0, BAD, final=True)) == [ev.Deliver(0, (), BAD, row=0)]
    assert script.counters == {"reads": 1}


@pytest.mark.parametrize("final", [False, True])
def test_a_read_of_an_earlier_start_breaks_nothing_and_costs_no_try(final: bool) -> None:
    """Its cause may be gone since then, so the block is read again; that read's error counts."""
    script = reading(0)
    script.start(make_step(0))
    assert script.tell(ev.ReadFailed(0, BAD, final=final)) == [
        ev.Read(1, "r0", (0,), budget=1000, step=0)
    ]
    assert script.state.cache.blocks[0].tries == 0
    assert script.tell(ev.ReadFailed(1, BAD, final=True)) == [ev.Deliver(0, (), BAD, row=0)]


def test_a_read_that_fails_as_often_as_it_may_ends_the_stream() -> None:
    """The fourth time by default, with the last error."""
    script = reading(0)
    for task in range(3):
        error = OSError(f"try {task}")
        assert script.tell(ev.ReadFailed(task, error, final=False)) == [
            ev.Read(task + 1, "r0", (0,), budget=1000, step=0)
        ]
    error = OSError("last")
    assert script.tell(ev.ReadFailed(3, error, final=False)) == [
        ev.Fail("failed after 4 attempts", (0,), error)
    ]
    assert script.dispatch.stats()["retries"] == 4
    assert script.tell(ev.WorkerJoined("r1", "reader", 1)) == []


@pytest.mark.parametrize("failure", ev.WorkerFailure)
def test_a_lost_reader_costs_a_try_only_if_its_failure_counts(failure: ev.WorkerFailure) -> None:
    """The read is begun again by another reader in any case."""
    script = reading(0)
    assert script.tell(ev.WorkerLost("r0", failure), ev.WorkerJoined("r1", "reader", 1)) == [
        ev.Read(1, "r1", (0,), budget=1000, step=0)
    ]
    assert script.state.cache.blocks[0].tries == failure.counts_as_try
    assert script.dispatch.stats()["retries"] == 1


def test_a_failed_copy_of_a_read_leaves_the_block_to_the_other() -> None:
    """It counts as a retry, and nothing is begun."""
    script = reading(0)
    script.tell(ev.WorkerJoined("r1", "reader", 1), ev.Overdue(0))
    assert script.tell(ev.ReadFailed(1, OSError(), final=False)) == []
    assert script.state.cache.blocks[0].awaited
    assert script.dispatch.stats()["retries"] == 1


# Lost blocks


def test_a_lost_block_that_a_decode_uses_is_read_again_and_the_chunk_waits() -> None:
    """The block counts as lost once; those that are not in the store do not count."""
    script = decoding(1)
    assert script.tell(ev.BlocksLost((0, 0, 5))) == [ev.Read(2, "r0", (0,), budget=100, step=0)]
    assert script.counters == {
        "reads": 2,
        "blocks_read": 1,
        "decodes": 1,
        "blocks_lost": 1,
        "blocks_reread": 1,
        "bytes_in_flight": 10 + 100,
    }
    assert script.tell(ev.BlocksLost((0,))) == []
    assert script.dispatch.stats()["blocks_lost"] == 1
    # The decode had the block all the same, so its chunk waits no longer.
    assert script.decode(1, 10) == [ev.Deliver(0, (output(1, 0, 0),))]
    assert not script.state.cache.blocks[0].waiting


def test_a_lost_block_of_another_chunk_disturbs_no_decode() -> None:
    """Only chunks that need the block wait again."""
    script = Script([100] * 2)
    script.join()
    script.start(make_step(0), make_step(1))
    script.read(0, 100)
    script.read(2, 100)
    assert script.tell(ev.BlocksLost((1,))) == [ev.Read(3, "r0", (1,), budget=100, step=1)]
    assert script.decode(1, 10) == [ev.Drop((0,)), ev.Deliver(0, (output(1, 0, 0),))]


def test_a_lost_block_that_only_an_old_decode_uses_is_not_read_again() -> None:
    """The chunks of an earlier start are obsolete."""
    script = decoding(1)
    script.start(make_step(1))
    assert script.tell(ev.BlocksLost((0,))) == []
    assert not script.state.cache.blocks[0].waiting


# Decodes


def test_a_decode_that_ends_frees_its_charge_and_charges_its_outputs() -> None:
    """They are charged as one object until the last part is released."""
    script = decoding(1, 2, ready_batches=1, max_ready_batches=1, inline_bytes=1)
    ledger = script.state.ledger
    assert (ledger.decoding, ledger.outputs) == (30, 0)
    script.decode(1, 8, 15)
    assert (ledger.decoding, ledger.outputs, ledger.released) == (0, 23, 100)
    assert script.tell(ev.BatchTaken()) == [
        ev.ReportFreed(23),
        ev.Deliver(1, (output(1, 1, 0, 1),)),
    ]
    assert (ledger.outputs, ledger.released) == (0, 123)


def test_the_size_of_a_row_is_that_of_the_good_rows() -> None:
    """A part of 3 rows of which one is bad has two."""
    script = decoding(3)
    script.state.find_replacement = lambda step, row, error, unreadable: (7, 100)
    script.tell(ev.DecodeDone(1, (ev.PartDone(50, bad=((1, BAD),)),), 1.0))
    assert script.state.pace.expected_bytes(1) == 25


def test_the_cost_of_the_rows_is_the_base_of_their_size_and_time() -> None:
    """Two packed rows that cost 8 together take 5 bytes and a quarter of a second each."""
    script = Script([100], measured=False, task_seconds=1.0)
    script.join()
    script.start(make_step(0, 0, cost=8))
    script.read(0, 100)
    script.decode(1, 40, seconds=2.0)
    assert script.state.pace.expected_bytes(1) == 5
    assert script.state.pace.task_rows == 4


def test_parts_with_errors_or_bad_rows_alone_teach_no_size() -> None:
    """They have no good rows."""
    for done in (ev.PartDone(90, BAD), ev.PartDone(90, bad=((0, BAD),))):
        script = decoding(1, measured=False)
        script.state.find_replacement = lambda step, row, error, unreadable: error
        script.tell(ev.DecodeDone(1, (done,), 1.0))
        assert not script.state.pace.measured


def test_an_error_of_a_part_is_delivered_and_its_output_discarded() -> None:
    """The outputs of other parts stay."""
    script = decoding(1, 1, inline_bytes=1)
    parts = ev.PartDone(4, BAD), ev.PartDone(10)
    assert script.tell(ev.DecodeDone(1, parts, 1.0)) == [
        ev.Discard(1, (0,)),
        ev.Drop((0,)),
        ev.ReportFreed(100),
        ev.Deliver(0, (), BAD, row=0),
        ev.ReportFreed(14),
        ev.Deliver(1, (output(1, 1, 0),)),
    ]


def test_a_part_that_was_left_out_is_decoded_again_with_the_size_it_takes() -> None:
    """It is neither charged nor discarded. The size of a part behind it is unknown."""
    script = decoding(2, 1, 1, inline_bytes=1)
    parts = ev.PartDone(20), ev.PartDone(70, left_out=True), ev.PartDone(0, left_out=True)
    assert script.tell(ev.DecodeDone(1, parts, 0.0)) == [
        ev.ReportFreed(20),
        ev.Deliver(0, (output(1, 0, 0, 1),)),
        ev.Decode(2, "d0", (part(1, 0), part(2, 0)), (0,), budget=70 + 70),
    ]


def test_the_time_of_a_task_is_that_of_the_rows_it_decoded() -> None:
    """Rows that were too large took time; rows behind them did not."""
    script = decoding(2, 2, 4, task_seconds=1.0)
    parts = ev.PartDone(20), ev.PartDone(21, left_out=True), ev.PartDone(0, left_out=True)
    script.tell(ev.DecodeDone(1, parts, 1.0))
    assert script.state.pace.task_rows == 4


def test_the_second_copy_of_a_decode_is_discarded() -> None:
    """All of it; the bytes are released at once."""
    script = decoding(1, 1, inline_bytes=1)
    script.tell(ev.WorkerJoined("d1", "decoder", 1))
    assert script.tell(ev.Overdue(1)) == [
        ev.Decode(2, "d1", (part(0, 0), part(1, 0)), (0,), budget=20)
    ]
    script.decode(2, 10, 10)
    assert script.decode(1, 11, 12) == [
        ev.ReportFreed(23),
        ev.Discard(1, (0, 1)),
        ev.Drop((0,)),
        ev.ReportFreed(100),
    ]
    assert script.dispatch.stats()["hedges"] == 1


def test_a_failed_decode_is_repeated_until_it_failed_too_often() -> None:
    """A chunk of one row is named in the failure."""
    script = decoding(1)
    for task in (1, 2, 3):
        assert script.tell(ev.DecodeFailed(task, OSError())) == [
            ev.Decode(task + 1, "d0", (part(0, 0),), (0,), budget=10)
        ]
    error = OSError("last")
    assert script.tell(ev.DecodeFailed(4, error)) == [
        ev.Fail("failed after 4 attempts", (0,), error, row=(0, 0))
    ]
    assert script.dispatch.stats()["retries"] == 4


def test_a_failure_of_several_rows_names_none() -> None:
    """Any of them may be at fault."""
    script, error = decoding(2, max_tries=1), OSError()
    assert script.tell(ev.DecodeFailed(1, error)) == [
        ev.Fail("failed after 1 attempts", (0,), error)
    ]


def test_a_failed_copy_of_a_decode_leaves_the_chunk_to_the_other() -> None:
    """It is no retry."""
    script = decoding(1)
    script.tell(ev.WorkerJoined("d1", "decoder", 1), ev.Overdue(1))
    assert script.tell(ev.DecodeFailed(2, OSError())) == []
    assert script.dispatch.stats()["retries"] == 0
    assert script.decode(1, 10) == [ev.Drop((0,)), ev.Deliver(0, (output(1, 0, 0),))]


@pytest.mark.parametrize("failure", [f for f in ev.WorkerFailure if not f.blames_task])
def test_a_lost_decoder_that_blames_no_sample_makes_no_suspect(failure: ev.WorkerFailure) -> None:
    """It costs a try if it counts."""
    script = decoding(1)
    assert script.tell(ev.WorkerLost("d0", failure), ev.WorkerJoined("d1", "decoder", 1)) == [
        ev.Decode(2, "d1", (part(0, 0),), (0,), budget=10, suspect=False)
    ]
    (chunk,) = script.state.queue.due_chunks()
    assert (chunk.tries, chunk.crashes) == (failure.counts_as_try, 0)


# Blame


def end_decoder(script: Script, number: int, failure: ev.WorkerFailure) -> list[ev.Command]:
    """Have decoder `number` fail and the next one join."""
    joined = ev.WorkerJoined(f"d{number + 1}", "decoder", 1)
    return script.tell(ev.WorkerLost(f"d{number}", failure), joined)


def decodes(commands: Sequence[ev.Command]) -> list[tuple[tuple[ev.Part, ...], bool]]:
    """Return the parts of each decode and whether they are suspect."""
    return [(c.parts, c.suspect) for c in commands if isinstance(c, ev.Decode)]


@pytest.mark.parametrize(
    ("failure", "most", "deed"),
    [(CRASHED, 4, "ended its worker"), (TIMED_OUT, 2, "took longer than decode_timeout")],
)
def test_a_row_that_keeps_ending_its_workers_is_blamed(
    failure: ev.WorkerFailure, most: int, deed: str
) -> None:
    """At the fourth crash and not at the third; at the second time-out. Crashes are no tries."""
    script = decoding(1, max_tries=1)
    for number in range(most - 1):
        assert decodes(end_decoder(script, number, failure)) == [((part(0, 0),), True)]
    drop, deliver = end_decoder(script, most - 1, failure)
    assert drop == ev.Drop((0,))
    assert isinstance(deliver, ev.Deliver)
    assert (deliver.step, deliver.outputs, deliver.row) == (0, (), 0)
    assert isinstance(deliver.error, DeadlySampleError)
    assert deliver.error.transient == (failure is TIMED_OUT)
    assert f"decoding this sample {deed} {most} times" in str(deliver.error)
    assert script.dispatch.stats()["retries"] == most


def test_one_time_out_among_crashes_suffices() -> None:
    """A crash and a time-out are two."""
    script = decoding(1)
    end_decoder(script, 0, TIMED_OUT)
    _, deliver = end_decoder(script, 1, CRASHED)
    assert isinstance(deliver, ev.Deliver)
    assert "took longer than decode_timeout 2 times" in str(deliver.error)


def test_rows_that_end_two_workers_are_decoded_in_halves() -> None:
    """Each half keeps one crash, so it is halved at its next."""
    script = decoding(5)
    assert decodes(end_decoder(script, 0, CRASHED)) == [((part(0, 0, 1, 2, 3, 4),), True)]
    assert decodes(end_decoder(script, 1, CRASHED)) == [((part(0, 0, 1),), True)]
    assert [c.crashes for c in script.state.queue.due_chunks()] == [1, 1]
    assert decodes(end_decoder(script, 2, CRASHED)) == [((part(0, 0),), True)]
    assert [c.crashes for c in script.state.queue.due_chunks()] == [1, 1, 1]
    rows = [c.rows.tolist() for c in script.state.queue.due_chunks()]
    assert rows == [[0], [1], [2, 3, 4]]


def test_a_blamed_row_is_replaced_where_bad_samples_are() -> None:
    """The error of a crash is of the data; a time-out may be an accident, so it is delivered."""
    asked = []

    def find(step: int, row: int, error: DataError, unreadable: bool) -> tuple[int, int]:
        asked.append((step, row, type(error), unreadable))
        return 0, 100

    for failure, crashes in ((CRASHED, 4), (TIMED_OUT, 2)):
        script = decoding(1)
        script.state.find_replacement = find
        for number in range(crashes):
            commands = end_decoder(script, number, failure)
        if failure is CRASHED:
            assert decodes(commands) == [((part(0, 0),), False)]
        else:
            assert isinstance(commands[1], ev.Deliver)
    assert asked == [(0, 0, DeadlySampleError, False)]


def test_a_late_answer_of_a_lost_worker_is_ignored() -> None:
    """Its task has ended."""
    script = decoding(1)
    script.tell(ev.WorkerLost("d0", ev.WorkerFailure.NODE_LOST))
    before = script.counters
    assert script.decode(1, 10) == []
    assert script.tell(ev.WorkerLost("d0", ev.WorkerFailure.NODE_LOST)) == []
    assert script.counters == before
