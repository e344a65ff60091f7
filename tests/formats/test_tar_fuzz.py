"""A damaged tar gives exactly the samples of the standard library, or a DataError."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayingest.errors import DataError
from tests.support.tar_reference import (
    BLOCK,
    archive,
    check,
    damaged,
    read,
    reference,
    with_sum,
    with_sums,
)

in_one_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
randoms = st.randoms(use_true_random=False)


@settings(in_one_folder, max_examples=20)
@given(random=randoms)
def test_valid_archives_are_read_as_the_standard_library_reads_them(
    tmp_path: Path, random: Random
) -> None:
    """Holds for all kinds of members and all three header formats."""
    data = archive(random)
    assert read(data, tmp_path / "s.tar") == reference(data)


@settings(in_one_folder, max_examples=120)
@given(random=randoms)
def test_damaged_archives_are_read_exactly_or_refused(tmp_path: Path, random: Random) -> None:
    """Flips, cuts, insertions, repeats and other header values, before and after indexing."""
    before = archive(random)
    check(damaged(before, random), before, tmp_path)


@settings(in_one_folder, max_examples=60)
@given(data=st.binary(max_size=3 * BLOCK), random=randoms)
def test_anything_at_all_is_read_exactly_or_refused(
    tmp_path: Path, data: bytes, random: Random
) -> None:
    """Random bytes, with and without header checksums, alone and before an archive."""
    before = archive(random)
    for tried in (
        data,
        with_sums(data),
        with_sums(data.ljust(-(-len(data) // BLOCK) * BLOCK, b"\0")) + before,
    ):
        check(tried, before, tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_damage_is_found_by_seeds_too(tmp_path: Path, seed: int) -> None:
    """Pseudo-random damage goes deeper than drawn cases, which stay simple."""
    random = Random(seed)
    read_whole = 0
    for _ in range(15):
        before = archive(random)
        read_whole += check(damaged(before, random), before, tmp_path)
    assert 0 < read_whole < 15


@pytest.mark.parametrize("kind", [b"0", b"L", b"x", b"D"])
@pytest.mark.parametrize("size", [8**11 - 1, 1 << 40, 1 << 61, (1 << 62) + 1, 1 << 80])
def test_sizes_that_headers_claim_are_never_allocated(
    tmp_path: Path, kind: bytes, size: int
) -> None:
    """A short header that claims gigabytes costs no memory."""
    header = archive(Random(0))[:BLOCK]
    field = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    header = with_sum(header[:124] + field + header[136:156] + kind + header[157:])
    for name in ("s.tar", "s.tgz"):
        data = header + bytes(4 * BLOCK)
        tracemalloc.start()
        with pytest.raises(DataError):
            read(gzip.compress(data) if name == "s.tgz" else data, tmp_path / name)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20
