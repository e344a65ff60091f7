"""Formats over Ray."""

from __future__ import annotations

from pathlib import Path

import rayingest as ri
from tests.support.format_cases import CASES, read
from tests.support.format_samples import SAMPLES
from tests.support.iterables import iterable
from tests.support.streams import run


def test_ray_reads_what_the_calling_process_reads(pool_of_1: ri.Pool, tmp_path: Path) -> None:
    """All formats, with one pool of workers."""
    for name, case in CASES.items():
        folder = tmp_path / name
        folder.mkdir()
        case.write(folder)
        data = case.read(str(folder))
        assert read(data) == SAMPLES, name  # the index is kept
        assert read(data, pool=pool_of_1) == SAMPLES, name


def test_what_is_iterated_is_the_same_over_ray(pool_of_1: ri.Pool) -> None:
    """Samples and random numbers, in blocks that are read by several threads."""
    data = iterable(block_bytes=300).shuffle(seed=9).batch(10)
    assert run(data, epochs=2, pool=pool_of_1)[0] == run(data, epochs=2)[0]
