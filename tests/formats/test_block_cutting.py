"""Blocks are cut greedily, and equal whether samples are added one by one or together."""

from __future__ import annotations

import numpy as np
import pytest

from rayingest.formats.protocol import BlockBuilder, single_block


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 5000, 1 << 40])
def test_many_at_once_equals_one_by_one(block_bytes: int) -> None:
    """Blocks are the same however samples are added, and exceed no limit by more than one."""
    rng = np.random.default_rng(1)
    ends = np.cumsum(rng.integers(1, 60, 5000))
    begins = np.concatenate([[3], ends[:-1]])
    one, many = BlockBuilder(block_bytes), BlockBuilder(block_bytes)
    for begin, end in zip(begins, ends, strict=True):
        one.add(int(begin), int(end), int(end - begin))
    for at in range(0, 5000, 700):
        part = slice(at, at + 700)
        many.extend(begins[part], ends[part], ends[part] - begins[part])
    a, b = one.finish(), many.finish()
    for name in ("begin", "end", "samples", "nbytes"):
        assert (getattr(a, name) == getattr(b, name)).all()
    assert a.samples.sum() == 5000
    assert a.samples.max() <= 1024
    assert a.nbytes.sum() == ends[-1] - 3
    assert (a.begin[1:] == a.end[:-1]).all()
    full = (a.end - a.begin >= block_bytes) | (a.samples == 1024)
    assert full[:-1].all()


def test_a_shard_without_samples_has_no_block() -> None:
    """A block holds at least one sample."""
    assert len(BlockBuilder(10).finish()) == 0
    assert len(single_block(100, 0, 0)) == 0
    assert single_block(100, 3, 9).end.tolist() == [100]
