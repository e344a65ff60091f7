"""The ledger charges each byte in exactly one part."""

from __future__ import annotations

from rayingest.plan.dispatch.ledger import Ledger


def test_the_parts_add_up_to_the_total() -> None:
    """Reads, blocks, decodes, outputs and released bytes are all charged."""
    ledger = Ledger(max_bytes=100, inline_bytes=10)
    ledger.begin_read(1)
    ledger.add_block(2)
    ledger.begin_decode(4)
    assert ledger.add_outputs(7, [3, 5], useless=0) == 0
    assert ledger.release(16)
    assert (ledger.blocks, ledger.decoded, ledger.total) == (3, 12, 31)
    assert ledger.cap(69) == 69
    assert ledger.cap(70) == 69
    assert ledger.exceeds_by(70) == 1
    ledger.validate()


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
    assert not ledger.is_whole(1)
    assert ledger.add_outputs(2, [6], useless=0) == 0
    assert ledger.is_whole(2)
    assert ledger.add_outputs(3, [7, 8], useless=2) == 15
    assert ledger.remove_output(1) == 0
    assert ledger.outputs == 18
    assert ledger.remove_output(1) == 12
    assert ledger.clear_outputs() == [6]
    assert ledger.outputs == 0
