"""Other loaders and distant storage: the server, the turns and their figures."""

from __future__ import annotations

import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch

from benchmarks import storage, storage_loaders
from jobs import slow_files


def test_files_far_away_are_those_at_hand(tmp_path: Path) -> None:
    """The server delays and returns ranges and whole files; each sample is read by its place."""
    names = slow_files.write_shards(tmp_path, shards=2, samples=3, nbytes=700)
    shard = (tmp_path / names[1]).read_bytes()
    with slow_files.served(tmp_path) as address:
        http = fsspec.filesystem("http")
        begun = time.monotonic()
        assert http.cat_file(f"{address}/100/{names[0]}") == shard
        assert time.monotonic() - begun >= 0.1
        assert http.cat_file(f"{address}/0/{names[1]}", 512, 1212) == shard[512:1212]
        assert http.info(f"{address}/0/{names[0]}")["size"] == len(shard)
        assert not http.exists(f"{address}/0/missing.tar")
        for where in (tmp_path, f"{address}/0"):
            urls = tuple(f"{where}/{name}" for name in names)
            far = storage_loaders.Far(urls, tmp_path / names[0], len, batch=2, workers=1)
            samples = storage_loaders.Ranges(far)
            assert [samples[number] for number in range(len(samples))] == 6 * [700]


def test_a_turn_far_away_ends_in_time() -> None:
    """A turn is some batches, or as many as arrive in time, at least one for each worker."""
    forms = [
        {"seconds": torch.tensor([0.5, 1.0]), "__index__": torch.arange(2)},
        (np.array([0.5, 1.0]),),
    ]
    for most, expected in ((60.0, storage.Stretch(6, 3, 9.0)), (1.0, storage.Stretch(2, 1, 3.0))):
        clock = iter(range(100)).__next__
        assert storage.take(iter(5 * forms), 6, at_once=2, most=most, clock=clock) == expected


def test_what_is_kept_far_away_is_of_the_same_round() -> None:
    """Each contestant is compared with itself nearby, in turns that go there and back."""
    order = [place for _, _, place in storage.in_turn(2, ["one"], ["local", "20 ms"])]
    assert order == ["local", "20 ms", "20 ms", "local"]
    near, far = ((100.0, 0.8), (200.0, 0.9), (100.0, 0.8)), ((90.0, 0.8), (190.0, 0.9), (80.0, 0.6))
    turns = {
        place: [storage.Turn(*turn, {}) for turn in some]
        for place, some in (("local", near), ("20 ms", far))
    }
    figures = storage.summarise({"one": turns})
    assert figures["one"]["20 ms"]["kept"]["median"] == pytest.approx(0.9)
    assert figures["one"]["local"]["kept_busy"]["min"] == 1
    assert "0.900 (0.800 to 0.950)" in storage.report(figures)
    assert "1.000 (0.750 to 1.000)" in storage.report(figures)
    assert "TOO SHORT" not in storage.report(figures)
    ahead = storage.summarise({"one": {"local": [storage.Turn(9e6, 5.0, {})]}})
    assert "TOO SHORT" in storage.report(ahead)
