"""Offsets: which marks lead on, for which walk."""

from __future__ import annotations

import pytest

from rayingest.errors import DataError
from rayingest.plan.order.offsets import Offsets, encode_mark


def test_marks_lead_from_block_to_block() -> None:
    """As far as they are known, and back to what the loop has received."""
    marks = Offsets(["a", "b"])
    assert marks.begin(0)
    blocks = [marks.block(step) for step in range(3)]
    assert marks.before(blocks[0]) == (0, encode_mark(0, [None, None]))
    assert marks.before(blocks[1]) == (1, "")
    assert not marks.first_is_read
    marks.note(blocks[0], "one")
    marks.note(blocks[1], "two")
    assert marks.first_is_read
    assert marks.before(blocks[1]) == (1, "one")
    marks.reached(2)
    assert marks.before(blocks[1]) == (1, "")
    assert marks.at(2) == "two"


def test_a_walk_knows_nothing_of_the_one_before() -> None:
    """Blocks have other numbers, and what is still told of the old ones says nothing."""
    marks = Offsets(["a"])
    assert marks.begin(0)
    old = marks.block(0)
    marks.note(old, "old")
    assert marks.begin(0)
    assert marks.block(0) != old
    assert marks.before(old) == (0, "")
    marks.note(old, "older")
    marks.note(marks.block(0), "new")
    assert marks.at(1) == "new"
    marks.go_on_from(7, "seven")
    assert not marks.begin(1)
    assert marks.at(7) == "seven"


def test_records_that_change_are_noticed() -> None:
    """A block that is read again must lead to where it led before."""
    marks = Offsets(["a"])
    marks.begin(0)
    marks.note(marks.block(0), encode_mark(0, [4]))
    marks.note(marks.block(0), encode_mark(0, [4]))
    with pytest.raises(
        DataError,
        match=r"step 0 was read again and has other records: .*0, .4.. before.* .0, .5.. now",
    ):
        marks.note(marks.block(0), encode_mark(0, [5]))
