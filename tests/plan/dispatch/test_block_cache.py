"""The block cache: expected sizes, their correction, and the order of eviction."""

from __future__ import annotations

import numpy as np
import pytest

from rayingest.plan.dispatch.block_cache import BlockCache
from rayingest.plan.dispatch.chunks import FIRST, Chunk
from rayingest.plan.dispatch.ledger import Ledger


def cache(sizes: list[int]) -> BlockCache:
    """A cache with room for everything; step i needs block i."""
    blocks = BlockCache(np.array(sizes), Ledger(1 << 40, 0))
    for step in range(len(sizes)):
        chunk = Chunk(step, np.array([0]), np.array([step]), 1.0)
        assert blocks.add(chunk, [step + 1]) is None
    return blocks


def read(blocks: BlockCache, number: int, nbytes: int) -> None:
    """Have a block read that takes this many bytes."""
    block = blocks.blocks[number]
    charge = blocks.begin_read(block)
    assert blocks.end_read(number, charge) is block
    blocks.arrive(block, nbytes)


@pytest.mark.parametrize(("seen", "expected"), [(100, 200), (200, 500), (40, 100)])
def test_sizes_seen_correct_what_is_expected_of_others(seen: int, expected: int) -> None:
    """By the largest ratio and a quarter; never above the index's size unless one block was."""
    blocks = cache([100, 200])
    assert blocks.expected_bytes(1) == 200
    read(blocks, 0, seen)
    assert blocks.expected_bytes(0) == seen
    assert blocks.expected_bytes(1) == expected


def test_the_block_needed_latest_is_evicted_first() -> None:
    """Blocks that a decode uses, and those needed no later than the key, are not evicted."""
    blocks = cache([10, 10, 10, 10])
    for number in range(4):
        read(blocks, number, 10)
    assert [block.number for block in blocks.evictable(FIRST)] == [3, 2, 1, 0]
    assert [block.number for block in blocks.evictable((1, 0))] == [3, 2]
    blocks.pin(blocks.blocks[3].waiting[(3, 0)])
    assert [block.number for block in blocks.evictable(FIRST)] == [2, 1, 0]
