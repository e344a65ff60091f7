"""Partitions: read ahead by a limited number of steps, from any position."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from rayingest.errors import DataError, EndOfStreamError
from rayingest.execute.unbounded.partitions import Partitions, Source, mark_after
from rayingest.execute.work import Span
from rayingest.plan.order.offsets import encode_mark
from tests.support.records import Counts, Pair

BEGIN = encode_mark(0, [None, None])


class Gate:
    """Numbers below `most`, then None until it grows. Counts the partitions opened and closed."""

    def __init__(self, most: int) -> None:
        self.most, self.opened, self.closed, self.given = most, 0, 0, 0
        self.changed = threading.Condition()

    def __call__(self, name: str, offset: int | None) -> Iterator[Pair | None]:
        self.opened += 1
        try:
            for i in range(offset or 0, 1 << 40):
                while i >= self.most:
                    with self.changed:
                        self.changed.wait(0.01)
                    yield None
                self.given += 1
                yield {"i": i}, i + 1
        finally:
            self.closed += 1


def spans(step: int, at: str, count: int, rows: tuple[int, int] = (0, 4)) -> Any:
    """Return the span of `count` steps from `step` on."""
    return [Span("", step, at, [(*rows, rows[1] - rows[0])] * count)]


def test_reading_continues_at_the_bookmark(wait_until: Any) -> None:
    """A read returns the steps that are ready, at most the number requested, with its own rows."""
    gate = Gate(22)
    partitions = Partitions(Source(gate, ("a", "b"), 4), ahead=True)
    step, at, tables = 0, BEGIN, list[pa.Table]()
    while step < 11:
        found = partitions.read(spans(step, at, 3, (1, 3)))
        assert 1 <= len(found) <= 3
        tables += found
        step, at = step + len(found), mark_after(found[-1])
    assert at == encode_mark(0, [22, 22])
    assert [table.num_rows for table in tables] == [2] * 11
    assert tables[0].column("__file__").to_pylist() == ["Gate/b", "Gate/a"]
    assert tables[1].column("__offset__").to_pylist() == [2, 3]
    assert gate.opened == 2
    partitions.close()
    wait_until(lambda: gate.closed == 2)


def test_reading_runs_ahead_by_16_steps(wait_until: Any) -> None:
    """And no further, however long nobody reads."""
    gate = Gate(1 << 40)
    partitions = Partitions(Source(gate, ("a",), 4), ahead=True)
    at = encode_mark(0, [None])
    partitions.read(spans(0, at, 1))
    wait_until(lambda: gate.given == 17 * 4)
    assert gate.given <= 17 * 4
    partitions.close()


def test_a_read_at_another_position_ends_the_waiting_one(wait_until: Any) -> None:
    """With no tables; the position that was requested last is read."""
    gate = Gate(6)
    partitions = Partitions(Source(gate, ("a",), 4), ahead=True)
    (first,) = partitions.read(spans(0, encode_mark(0, [None]), 5))
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(partitions.read(spans(1, mark_after(first), 1)))
    )
    waiting.start()
    assert partitions.read(spans(7, encode_mark(0, [2]), 1))[0].column(
        "__offset__"
    ).to_pylist() == [
        2,
        3,
        4,
        5,
    ]
    waiting.join(10)
    assert answers in ([[]], [])  # nothing, or it asks only now
    partitions.close()
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize("ahead", [True, False])
def test_after_its_end_a_partition_is_opened_again(ahead: bool) -> None:
    """New records are then read.

    Records after a failed read are an error that is not the data's fault.
    """
    lengths = [5]
    partitions = Partitions(Source(Counts(lengths), (0,), 4), ahead=ahead)
    (table,) = partitions.read(spans(0, encode_mark(0, [None]), 3 if ahead else 1))
    for _ in range(2):
        with pytest.raises(EndOfStreamError):
            partitions.read(spans(1, mark_after(table), 1))
    lengths[0] = 9
    (again,) = partitions.read(spans(1, mark_after(table), 1))
    assert again.column("__offset__").to_pylist() == ["[4]", "[5]", "[6]", "[7]"]
    with pytest.raises(DataError, match="the records before these") as caught:
        partitions.read(spans(3, "", 1))
    assert caught.value.transient
