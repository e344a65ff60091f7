"""The manifest of shards and blocks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.plan.order.manifest import MAX_BLOCKS, Manifest, ShardBlocks
from tests.support.plan_cases import shard_blocks

SHARDS = st.lists(st.lists(st.integers(1, 30), max_size=9), max_size=6)


def join(shards: list[list[int]], max_blocks: int = MAX_BLOCKS) -> Manifest:
    names = [f"s{i}" for i in range(len(shards))]
    return Manifest.join(
        "mem://", names, [9] * len(shards), names, [shard_blocks(s) for s in shards], max_blocks
    )


@given(SHARDS)
def test_join_puts_the_shards_in_a_row(shards: list[list[int]]) -> None:
    """One entry a block, shards in the order given, empty shards kept in the numbering; all columns
    int64.
    """
    data = join(shards)
    assert data.shard.tolist() == [i for i, counts in enumerate(shards) for _ in counts]
    assert data.samples.tolist() == [count for counts in shards for count in counts]
    assert data.num_blocks == sum(map(len, shards))
    assert data.num_samples == sum(map(sum, shards))
    assert data.total_bytes == 100 * data.num_samples
    for name in ("sizes", "shard", "begin", "end", "samples", "nbytes"):
        assert getattr(data, name).dtype == np.int64
    assert [data.url(i) for i in range(len(shards))] == [f"mem://s{i}" for i in range(len(shards))]


@given(SHARDS)
def test_first_ordinal_counts_the_samples_before(shards: list[list[int]]) -> None:
    """A block's first ordinal is the number of samples in the blocks before it."""
    data = join(shards)
    assert data.first_ordinal.tolist() == [
        sum(data.samples[:block].tolist()) for block in range(data.num_blocks)
    ]


@given(st.lists(st.integers(1, 30), max_size=12))
def test_coarser_joins_neighbours(counts: list[int]) -> None:
    """Half as many blocks, rounded up, that hold the same samples and bytes in the same order
    without a gap.
    """
    fine, coarse = shard_blocks(counts), shard_blocks(counts).coarser()
    assert len(coarse) == (len(counts) + 1) // 2
    assert coarse.samples.tolist() == [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]
    assert coarse.nbytes.sum() == fine.nbytes.sum()
    assert coarse.begin.tolist() == fine.begin[::2].tolist()
    assert coarse.begin[1:].tolist() == coarse.end[:-1].tolist()
    assert coarse.end[-1:].tolist() == fine.end[-1:].tolist()


@settings(max_examples=50)
@given(SHARDS, st.integers(1, 40))
def test_join_makes_blocks_coarser_until_they_fit(shards: list[list[int]], max_blocks: int) -> None:
    """At most so many blocks, or one a shard; samples and bytes of every shard stay, as does their
    order.
    """
    data = join(shards, max_blocks)
    assert data.num_blocks <= max(max_blocks, sum(map(bool, shards)))
    for i, counts in enumerate(shards):
        own = data.shard == i
        assert data.samples[own].sum() == sum(counts)
        assert data.nbytes[own].sum() == 100 * sum(counts)
        assert (np.diff(data.begin[own]) > 0).all()
    if sum(map(len, shards)) <= max_blocks:
        assert data.fingerprint == join(shards).fingerprint


def test_fingerprint_follows_the_data_elsewhere() -> None:
    """A copy under another root, with other marks, is the same data."""
    data = join([[3, 4], [5]])
    assert replace(data, root="s3://bucket/").fingerprint == data.fingerprint
    assert replace(data, marks=("x", "y")).fingerprint == data.fingerprint
    assert len(data.fingerprint) == 16
    assert int(data.fingerprint, 16) >= 0


@pytest.mark.parametrize("column", ["sizes", "shard", "begin", "end", "samples", "nbytes"])
def test_fingerprint_changes_with_every_column(column: str) -> None:
    """One unit more in any size, or in any field of any block, is other data."""
    data = join([[3, 4], [5]])
    for entry in range(len(getattr(data, column))):
        changed = getattr(data, column).copy()
        changed[entry] += 1
        assert replace(data, **{column: changed}).fingerprint != data.fingerprint


def test_fingerprint_changes_with_the_paths() -> None:
    """Renamed, swapped, added or split paths are other data."""
    data = join([[3], [3]])
    made = {
        replace(data, paths=paths).fingerprint
        for paths in [("s1", "s0"), ("s0", "t"), ("s0",), ("s", "0s1")]
    }
    assert len(made | {data.fingerprint}) == 5


def test_fingerprint_ignores_how_the_arrays_lie() -> None:
    """Narrower integers or strided arrays of the same numbers are the same data."""
    data = join([[3, 4], [5]])
    other = replace(data, samples=np.repeat(data.samples, 2)[::2].astype(np.int32))
    assert other.fingerprint == data.fingerprint


def test_no_shards_is_an_empty_manifest() -> None:
    """Nothing is still a manifest, for whoever refuses it to say why."""
    data = Manifest.join("", [], [], [], [])
    assert (data.num_blocks, data.num_samples, data.total_bytes) == (0, 0, 0)
    assert len(ShardBlocks(*[np.zeros(0, np.int64)] * 4).coarser()) == 0
