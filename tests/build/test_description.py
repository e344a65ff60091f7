"""The line and the warnings about a stream before it starts."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.api.data import description_of
from rayingest.build.description import Ranks, describe
from rayingest.execute.stream import ManifestStream
from tests.support.streams import write_shards

BUDGET = 60_000


def stream(shards: str, **shuffle: int) -> ManifestStream:
    data = ri.read_webdataset(shards, block_bytes=4096).shuffle(seed=1, **shuffle).batch(16)
    given: dict[str, Any] = {"uneven": False, "on_ray": False, "skip": False, "image_backend": None}
    made, _ = description_of(data).build_stream(Ranks(0, 1, None), **given)
    assert isinstance(made, ManifestStream)
    return made


def test_a_warning_names_a_window_that_fits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The window it names gets no warning; without one that fits, it names no figures."""
    shards = write_shards(tmp_path, [100] * 8)
    with caplog.at_level(logging.WARNING, "rayingest"):
        describe(stream(shards), BUDGET)
        said = re.search(r"read again many times.*such as window=(\d+), lanes=(\d+)", caplog.text)
        assert said is not None
        caplog.clear()
        describe(stream(shards, window=int(said[1]), lanes=int(said[2])), BUDGET)
        assert "read again" not in caplog.text
        describe(stream(shards), 6000)
        assert "a smaller window and fewer lanes" in caplog.text
