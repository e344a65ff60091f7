"""`workers=(least, most)`: decoders come while the loop waits for them, and go when they are idle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.observe import watch
from tests.cluster.test_bottlenecks import BATCH, slow
from tests.streams import joined, write_shards


def test_decoders_come_and_go_and_the_stream_is_the_same(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 ms of decoding for steps of 60 ms need two; for steps of 300 ms one does."""
    monkeypatch.setattr(watch, "SCALE_SECONDS", 1.0)
    data = ri.read_webdataset(write_shards(tmp_path, [100] * 2, side=2), block_bytes=4096).select(json="json").map(slow)
    data = data.shuffle(seed=1, window=60).batch(BATCH)
    with data.loader(workers=0) as loader:
        reference = [joined([batch]) for _ in range(2) for batch in loader]
    seen, most, step, deadline = [], 0, 0.06, time.monotonic() + 100
    with data.loader(workers=(1, 3)) as loader:
        while time.monotonic() < deadline:
            for batch in loader:
                if len(seen) < len(reference):
                    seen.append(joined([batch]))
                time.sleep(step)
                decoders = loader.figures()["decoders"]
                most = max(most, decoders)
                step = 0.3 if most > 1 else step
                if most > 1 and decoders == 1 and len(seen) == len(reference):
                    break
            else:
                continue
            break
    assert (most > 1, decoders) == (True, 1)
    assert seen == reference
