"""The ledger charges each byte in exactly one part."""

from __future__ import annotations

from rayingest.plan.dispatch.ledger import Ledger


def test_the_parts_add_up_to_the_total() -> None:
    """Reads, blocks, decodes, outputs and released bytes are all charged."""
    ledger = Ledger(max_bytes=100, inline_bytes=10)
    assert (ledger.blocks, ledger.decoded, ledger.total) == (0, 0, 0)
    ledger.begin_read(1)
    ledger.add_block(2)
    ledger.begin_decode(4)
    assert ledger.add_outputs(7, [3, 5], useless=0) == 0
    assert ledger.release(16)
    assert (ledger.reading, ledger.resident, ledger.blocks) == (1, 2, 3)
    assert (ledger.decoding, ledger.outputs, ledger.decoded) == (4, 8, 12)
    assert (ledger.released, ledger.total) == (16, 31)
    ledger.validate()


def test_each_charge_is_taken_back_alone() -> None:
    """What ends leaves the charges of others."""
    ledger = Ledger(max_bytes=100, inline_bytes=0)
    for nbytes in (10, 1):
        ledger.begin_read(nbytes)
        ledger.add_block(2 * nbytes)
        ledger.begin_decode(4 * nbytes)
        ledger.release(8 * nbytes)
    ledger.end_read(1)
    assert (ledger.reading, ledger.total) == (10, 164)
    ledger.remove_block(2)
    assert (ledger.resident, ledger.total) == (20, 162)
    ledger.end_decode(4)
    assert (ledger.decoding, ledger.total) == (40, 158)
    ledger.free(8)
    assert (ledger.released, ledger.total) == (80, 150)


def test_a_new_charge_is_capped_at_what_is_free() -> None:
    """A charge of all that is free fits; beyond `max_bytes` nothing is free."""
    ledger = Ledger(max_bytes=100, inline_bytes=0)
    ledger.add_block(31)
    assert (ledger.cap(68), ledger.cap(69), ledger.cap(70)) == (68, 69, 69)
    assert (ledger.exceeds_by(69), ledger.exceeds_by(70)) == (0, 1)
    ledger.add_block(70)
    assert ledger.cap(5) == 0
    assert ledger.exceeds_by(0) == 1


def test_a_small_object_is_free_as_soon_as_it_is_released() -> None:
    """One of `inline_bytes` lies in the store until it is reported as freed."""
    ledger = Ledger(max_bytes=100, inline_bytes=10)
    assert not ledger.release(9)
    assert ledger.total == 0
    assert ledger.release(10)
    assert ledger.released == 10
    ledger.free(10)
    assert ledger.total == 0


def test_an_object_goes_with_its_last_part() -> None:
    """Until then it is charged whole; an object without a needed part is never charged."""
    ledger = Ledger(max_bytes=100, inline_bytes=0)
    assert ledger.add_outputs(1, [3, 4, 5], useless=1) == 0
    assert ledger.add_outputs(2, [6], useless=0) == 0
    assert ledger.add_outputs(3, [7, 8], useless=2) == 15
    ledger.validate_outputs({1: 2, 2: 1})
    assert ledger.outputs == 18
    assert ledger.remove_output(1) == 0
    ledger.validate_outputs({1: 1, 2: 1})
    assert ledger.outputs == 18
    assert ledger.remove_output(1) == 12
    assert ledger.outputs == 6


def test_an_object_is_whole_while_every_part_is_needed() -> None:
    """It is not where a part was useless from the start, or has gone since."""
    ledger = Ledger(max_bytes=100, inline_bytes=0)
    ledger.add_outputs(1, [3, 4], useless=1)
    ledger.add_outputs(2, [6, 6], useless=0)
    assert not ledger.is_whole(1)
    assert ledger.is_whole(2)
    ledger.remove_output(2)
    assert not ledger.is_whole(2)


def test_clearing_returns_the_sizes_of_the_objects_in_their_order() -> None:
    """Each object has one size, however many parts it has."""
    ledger = Ledger(max_bytes=100, inline_bytes=0)
    ledger.add_outputs(9, [3, 4], useless=0)
    ledger.add_outputs(2, [6], useless=0)
    assert ledger.clear_outputs() == [7, 6]
    assert ledger.outputs == 0
    assert ledger.clear_outputs() == []
