"""Formats over Ray."""

from __future__ import annotations

from pathlib import Path

import rayingest as ri
from tests.formats.cases import CASES
from tests.formats.samples import SAMPLES
from tests.formats.test_every_format import read


def test_ray_reads_what_the_calling_process_reads(pool_of_1: ri.Pool, tmp_path: Path) -> None:
    """All formats, with one pool of workers."""
    for name, case in CASES.items():
        folder = tmp_path / name
        folder.mkdir()
        case.write(folder)
        data = case.read(str(folder))
        assert read(data) == SAMPLES, name  # the index is kept
        assert read(data, pool=pool_of_1) == SAMPLES, name
