"""The block cache: where blocks are, their expected sizes, and the order of eviction."""

from __future__ import annotations

import numpy as np
import pytest

from rayingest.plan.dispatch.block_cache import Block, BlockCache, BlockState
from rayingest.plan.dispatch.chunks import FIRST, NEVER, Chunk
from rayingest.plan.dispatch.ledger import Ledger
from tests.support.dispatch_script import make_chunk


class Blocks:
    """A block cache whose ledger is at hand."""

    def __init__(self, sizes: list[int], max_bytes: int = 1 << 40) -> None:
        self.ledger = Ledger(max_bytes, 0)
        self.cache = BlockCache(np.array(sizes), self.ledger)

    def __getitem__(self, number: int) -> Block:
        return self.cache.blocks[number]

    def need(self, step: int, *numbers: int, until: int = 100) -> Chunk:
        """Have a chunk of this step wait for these blocks."""
        chunk = make_chunk(step, *numbers)
        assert self.cache.add(chunk, [until] * len(chunk.blocks)) is None
        return chunk

    def begin(self, number: int) -> int:
        """Begin a read of a block; return its charge."""
        return self.cache.begin_read(self[number])

    def read(self, number: int, nbytes: int) -> list[Chunk]:
        """Have a block read that takes this many bytes; return the chunks it makes ready."""
        charge = self.begin(number)
        assert self.cache.end_read(number, charge) is self[number]
        return self.cache.arrive(self[number], nbytes)


def one_block_a_step(sizes: list[int]) -> Blocks:
    """A cache with room for everything; step i needs block i."""
    blocks = Blocks(sizes)
    for step in range(len(sizes)):
        blocks.need(step, step, until=step + 1)
    return blocks


# Sizes


@pytest.mark.parametrize(("seen", "expected"), [(100, 200), (200, 500), (40, 100)])
def test_sizes_seen_correct_what_is_expected_of_others(seen: int, expected: int) -> None:
    """By the largest ratio and a quarter; never above the index's size unless one block was."""
    blocks = one_block_a_step([100, 200])
    assert not blocks.cache.measured
    assert blocks.cache.expected_bytes(1) == 200
    blocks.read(0, seen)
    assert blocks.cache.measured
    assert blocks.cache.expected_bytes(0) == seen
    assert blocks.cache.expected_bytes(1) == expected


def test_the_largest_ratio_counts_whatever_comes_later() -> None:
    """A block that is smaller than the index says does not lower the correction again."""
    blocks = one_block_a_step([100, 100, 100])
    blocks.read(0, 200)
    blocks.read(1, 50)
    assert blocks.cache.expected_bytes(2) == 250


def test_a_block_of_unknown_size_is_expected_to_take_a_byte() -> None:
    """Its real size is compared with one byte."""
    blocks = one_block_a_step([0, 10])
    assert blocks.cache.expected_bytes(0) == 1
    blocks.read(0, 4)
    assert blocks.cache.expected_bytes(1) == 50


def test_the_size_of_an_evicted_block_is_known() -> None:
    """The measured size holds as long as the block is not forgotten."""
    blocks = one_block_a_step([100])
    blocks.read(0, 30)
    blocks.cache.remove(blocks[0])
    assert blocks.cache.expected_bytes(0) == 30


@pytest.mark.parametrize(
    ("seen", "largest"), [(100, 200), (40, 100), (200, 200), (201, 201), (8, 20)]
)
def test_the_largest_block_is_corrected_once_and_never_upwards(seen: int, largest: int) -> None:
    """Before the first block arrives it is the index's; then the largest seen counts too."""
    blocks = Blocks([100, 200, 10])
    assert blocks.cache.largest == 0
    blocks.need(0, 0)
    assert blocks.cache.largest == 100
    blocks.need(0, 1)
    blocks.need(1, 2)
    assert blocks.cache.largest == 200
    blocks.read(0, seen)
    assert blocks.cache.largest == largest
    blocks.read(2, 1)
    assert blocks.cache.largest == largest


def test_the_largest_expected_block_is_that_of_the_index_where_it_has_all_sizes() -> None:
    """Otherwise it is the largest block taken up."""
    whole, listed = Blocks([10, 300, 20]), BlockCache([10, 300, 20], Ledger(1, 0))
    whole.need(0, 2)
    assert whole.cache.largest_expected_bytes() == 300
    listed.add(make_chunk(0, 2), [1])
    assert listed.largest_expected_bytes() == 20


# Waiting


def test_a_chunk_misses_the_blocks_that_are_not_in_the_store() -> None:
    """The block that comes last makes it ready."""
    blocks = Blocks([10, 10, 10])
    blocks.need(0, 2)
    blocks.read(2, 10)
    chunk = blocks.need(1, 0, 1, 2)
    assert chunk.missing == 2
    assert blocks.read(0, 10) == []
    assert chunk.missing == 1
    assert blocks.read(1, 10) == [chunk]
    assert chunk.missing == 0
    blocks.cache.remove(blocks[1])
    assert chunk.missing == 1
    blocks.cache.validate(0)
    with pytest.raises(ValueError):
        blocks.cache.add(make_chunk(2, 0, 1), [100])  # one `expires` for two blocks


def test_a_block_is_needed_next_by_the_first_chunk_that_waits() -> None:
    """Where none waits any more, it is never needed."""
    blocks = Blocks([10])
    later, sooner, between = (blocks.need(step, 0) for step in (5, 3, 4))
    assert blocks[0].next_use == (3, 0)
    blocks.cache.stop_waiting(sooner)
    assert blocks[0].next_use == (4, 0)
    blocks.cache.stop_waiting(between)
    assert blocks[0].next_use == (5, 0)
    blocks.cache.stop_waiting(later)
    assert blocks[0].next_use == NEVER
    blocks.cache.wait(later)
    assert blocks[0].next_use == (5, 0)


def test_the_block_wanted_next_is_absent_and_needed_first() -> None:
    """A block that is read, or for which no chunk waits, is not wanted."""
    blocks = Blocks([10] * 4)
    for step, number in ((2, 0), (1, 1), (3, 2)):
        blocks.need(step, number)
    chunk = blocks.need(0, 0)
    assert blocks.cache.next_wanted() is blocks[0]
    blocks.cache.stop_waiting(chunk)
    assert blocks.cache.next_wanted() is blocks[1]
    blocks.begin(1)
    assert blocks.cache.next_wanted() is blocks[0]
    blocks.read(0, 10)
    assert blocks.cache.next_wanted() is blocks[2]
    blocks.read(2, 10)
    assert blocks.cache.next_wanted() is None
    blocks.cache.remove(blocks[0])
    assert blocks.cache.next_wanted() is blocks[0]


def test_the_absent_bytes_of_a_chunk_are_those_that_no_read_brings() -> None:
    """Blocks in the store and blocks being read do not count."""
    blocks = Blocks([1, 20, 300, 4000])
    chunk = blocks.need(0, 0, 1, 2, 3)
    assert blocks.cache.absent_bytes(chunk) == 4321
    blocks.read(0, 1)
    blocks.begin(2)
    assert blocks.cache.absent_bytes(chunk) == 4020


def test_a_read_is_awaited_by_the_first_chunk_that_waits() -> None:
    """None awaits a block that is unknown, absent, or in the store."""
    blocks = Blocks([10, 10])
    blocks.need(4, 0)
    blocks.need(2, 0)
    assert blocks.cache.awaited_by(0) == NEVER
    assert blocks.cache.awaited_by(1) == NEVER
    blocks.begin(0)
    assert blocks.cache.awaited_by(0) == (2, 0)
    blocks.cache.arrive(blocks[0], 10)
    assert blocks.cache.awaited_by(0) == NEVER


# Reads


def test_a_read_is_charged_with_the_expected_size_or_all_that_is_free() -> None:
    """The charge is taken back when the read ends; the block is charged with its real size."""
    blocks = Blocks([40, 90], max_bytes=100)
    blocks.need(0, 0, 1)
    assert (blocks.begin(0), blocks.begin(1)) == (40, 60)
    assert blocks.ledger.reading == 100
    assert blocks.cache.end_read(1, 60) is blocks[1]
    blocks.cache.arrive(blocks[1], 35)
    assert (blocks.ledger.reading, blocks.ledger.resident) == (40, 35)


def test_the_first_of_two_reads_brings_the_block() -> None:
    """The other one finds it in the store, or forgotten."""
    blocks = Blocks([10, 10])
    blocks.need(0, 0)
    assert (blocks.begin(0), blocks.begin(0)) == (10, 10)
    assert (blocks[0].readers, blocks[0].reads, blocks.cache.rereads) == (2, 1, 0)
    assert blocks.cache.end_read(0, 10) is blocks[0]
    blocks.cache.arrive(blocks[0], 10)
    assert blocks.cache.end_read(0, 10) is None
    assert blocks[0].readers == 0
    assert blocks.cache.end_read(1, 0) is None
    assert blocks.ledger.reading == 0


def test_a_block_that_is_read_again_is_counted_once() -> None:
    """Its second read counts, the first one does not; an arrival clears its failures."""
    blocks = Blocks([10])
    blocks.need(0, 0)
    blocks.read(0, 10)
    assert blocks.cache.rereads == 0
    blocks.cache.remove(blocks[0])
    assert (blocks.ledger.resident, blocks[0].state) == (0, BlockState.ABSENT)
    blocks[0].tries = 3
    blocks.read(0, 10)
    assert (blocks[0].reads, blocks[0].tries, blocks.cache.rereads) == (2, 0, 1)


@pytest.mark.parametrize(("reads_before", "rereads"), [(0, 0), (1, 0), (2, 1)])
def test_a_read_that_left_a_block_out_does_not_count(reads_before: int, rereads: int) -> None:
    """Its counts are those from before the read; the size that the read found is known."""
    blocks = Blocks([10])
    blocks.need(0, 0)
    for _ in range(reads_before):
        blocks.read(0, 10)
        blocks.cache.remove(blocks[0])
    blocks.cache.end_read(0, blocks.begin(0))
    blocks.cache.leave_out(blocks[0], 70)
    assert (blocks[0].reads, blocks.cache.rereads) == (reads_before, rereads)
    assert (blocks[0].state, blocks[0].measured_bytes) == (BlockState.ABSENT, 70)
    assert blocks.cache.next_wanted() is blocks[0]


def test_a_block_that_was_left_out_is_still_read_while_another_read_runs() -> None:
    """Without a size, the expected size stays."""
    blocks = Blocks([10])
    blocks.need(0, 0)
    blocks.begin(0)
    blocks.cache.end_read(0, blocks.begin(0))
    blocks.cache.leave_out(blocks[0])
    assert (blocks[0].state, blocks[0].reads, blocks[0].readers) == (BlockState.READING, 1, 1)
    assert not blocks.cache.measured
    assert blocks[0].measured_bytes == 0


def test_no_chunk_waits_for_a_broken_block() -> None:
    """Those that waited are returned, and a new one gets its error."""
    blocks, error = Blocks([10, 10]), OSError("broken")
    chunks = [blocks.need(0, 0, 1), blocks.need(1, 0)]
    blocks.begin(0)
    assert blocks.cache.break_off(blocks[0], error) == chunks
    assert (blocks[0].state, blocks[0].error) == (BlockState.BROKEN, error)
    assert not blocks[0].waiting
    assert not blocks[1].waiting
    assert blocks.cache.add(make_chunk(2, 0, 1), [100, 100]) is error
    assert not blocks[1].waiting
    assert blocks.cache.next_wanted() is None


# Eviction


def test_the_block_needed_latest_is_evicted_first() -> None:
    """Blocks that a decode uses, and those needed no later than the key, are not evicted."""
    blocks = one_block_a_step([10, 10, 10, 10, 10])
    for number in range(4):
        blocks.read(number, 10)
    cache = blocks.cache
    assert [block.number for block in cache.evictable(FIRST)] == [3, 2, 1, 0]
    assert [block.number for block in cache.evictable((1, 0))] == [3, 2]
    chunk = blocks[3].waiting[(3, 0)]
    cache.pin(chunk)
    cache.pin(chunk)
    cache.unpin(chunk)
    assert blocks[3].pins == 1
    assert [block.number for block in cache.evictable(FIRST)] == [2, 1, 0]
    cache.unpin(chunk)
    assert [block.number for block in cache.evictable((2, 0))] == [3]


def test_a_block_expires_with_the_last_step_that_may_need_it() -> None:
    """It is returned once the horizon has reached that step, and not again."""
    blocks = Blocks([10, 10])
    for until in (4, 6, 6, 5):
        blocks.need(0, 0, until=until)
    blocks.need(0, 1, until=9)
    assert blocks[0].expires == 6
    assert blocks.cache.expired(3) == []
    assert blocks.cache.expired(6) == [0, 0]  # for 4 and for 6
    assert blocks.cache.expired(8) == []
    assert blocks.cache.expired(9) == [1]


def test_a_forgotten_block_never_expires() -> None:
    """Only known blocks are returned."""
    blocks = Blocks([10])
    chunk = blocks.need(0, 0, until=4)
    blocks.cache.stop_waiting(chunk)
    assert blocks.cache.forget(0, horizon=4) == 0
    assert blocks.cache.expired(4) == []
    assert blocks.cache.forget(0, horizon=4) == 0


def test_a_block_is_forgotten_when_nothing_uses_it_and_no_step_can_need_it() -> None:
    """Its bytes in the store are returned, and charged no more."""
    blocks = Blocks([10])
    chunk = blocks.need(0, 0, until=4)
    blocks.read(0, 12)
    cache = blocks.cache
    assert cache.forget(0, horizon=9) == 0  # a chunk waits for it
    cache.stop_waiting(chunk)
    cache.pin(chunk)
    assert cache.forget(0, horizon=9) == 0  # a decode uses it
    cache.unpin(chunk)
    blocks[0].readers = 1
    assert cache.forget(0, horizon=9) == 0  # a read of it runs
    blocks[0].readers = 0
    assert cache.forget(0, horizon=3) == 0  # step 3 may need it
    assert blocks.ledger.resident == 12
    assert cache.forget(0, horizon=4) == 12
    assert blocks.ledger.resident == 0
    assert not cache.blocks


def test_a_restart_keeps_the_blocks_in_the_store_and_those_in_use() -> None:
    """Blocks that are absent or broken go; the others stay until the given step."""
    blocks = Blocks([10] * 6)
    chunk = blocks.need(0, 0, 1, 2, 3, 4, 5)
    for number in (0, 1, 2):
        blocks.read(number, 10)
    blocks.begin(3)
    blocks.cache.pin(make_chunk(0, 1))
    blocks.cache.remove(blocks[1])  # pinned, and lost
    blocks[1].tries = 2
    blocks.cache.break_off(blocks[4], OSError())
    blocks.cache.wait(make_chunk(0, 0))
    blocks.cache.restart(7)
    assert set(blocks.cache.blocks) == {0, 1, 2, 3}
    for number in range(4):
        assert not blocks[number].waiting
        assert blocks[number].tries == 0
        assert (blocks[number].next_use, blocks[number].expires) == (NEVER, 7)
    assert blocks.cache.next_wanted() is None
    assert chunk.key not in blocks[0].keys
    blocks.cache.validate(0)
    assert blocks.cache.expired(6) == []
    assert sorted(blocks.cache.expired(7)) == [0, 1, 2, 3]


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("reading", [False, True])
def test_a_restart_tries_broken_blocks_again(pinned: bool, reading: bool) -> None:
    """Also those that a decode or another read still uses."""
    blocks = Blocks([10])
    blocks.need(0, 0)
    charges = [blocks.begin(0) for _ in range(1 + reading)]
    blocks.cache.end_read(0, charges[0])
    if pinned:
        blocks.cache.pin(make_chunk(0, 0))
    blocks.cache.break_off(blocks[0], OSError())
    blocks.cache.restart(7)
    assert set(blocks.cache.blocks) == ({0} if pinned or reading else set())
    chunk = blocks.need(0, 0)
    assert blocks[0].waiting == {chunk.key: chunk}
    assert blocks[0].state is (BlockState.READING if reading else BlockState.ABSENT)
    blocks.cache.validate(0)


def test_a_new_block_was_never_seen_nor_read() -> None:
    """Every count is 0, and it has no error."""
    block = Block(3)
    assert (block.nbytes, block.measured_bytes, block.expires) == (0, 0, 0)
    assert (block.pins, block.readers, block.reads, block.tries) == (0, 0, 0, 0)
    assert (block.state, block.next_use, block.error) == (BlockState.ABSENT, NEVER, None)
    assert not block.awaited


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", 1),
        ("next_use", (5, 5)),
        ("keys", []),
        ("pins", -1),
        ("state", BlockState.READING),
        ("nbytes", 0),
        ("error", OSError()),
        ("expires", 101),
        ("state", BlockState.ABSENT),
    ],
)
def test_a_block_that_contradicts_itself_is_not_valid(field: str, value: object) -> None:
    """Each case breaks an invariant of a block in the store that a chunk waits for."""
    blocks = Blocks([10])
    blocks.need(0, 0)
    blocks.read(0, 10)
    blocks.cache.next_wanted()
    blocks.cache.validate(0)
    setattr(blocks[0], field, value)
    with pytest.raises(AssertionError):
        blocks.cache.validate(0)
