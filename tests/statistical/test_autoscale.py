"""`workers=(least, most)`: decoders start while the loop waits for them and stop when idle."""

from __future__ import annotations

import time
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.monitor import watch
from rayingest.monitor.diagnose import WAIT_SHARE, wait_share
from rayingest.plan.figures.metrics import take_snapshot
from tests.statistical.test_bottlenecks import BATCH
from tests.support.streams import joined, slow, write_shards

SECONDS = 100.0

pytestmark = pytest.mark.statistical


def test_decoders_come_and_go_and_the_stream_is_the_same(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 ms of decoding: steps of 60 ms get decoders until waits are under 5 %; steps of 300 ms
    keep one.
    """
    monkeypatch.setattr(watch, "SCALE_SECONDS", 1.0)
    data = (
        ri.read_webdataset(write_shards(tmp_path, [100] * 2, side=2), block_bytes=4096)
        .select(json="json")
        .map(slow)
    )
    data = data.shuffle(seed=1, window=60).batch(BATCH)
    with data.loader(workers=0) as loader:
        reference = [joined([batch]) for _ in range(2) for batch in loader]
    seen = []
    with data.loader(workers=(1, 4)) as loader:
        batches = chain.from_iterable(repeat(loader))

        def share(step: float, steps: int) -> float:
            """Return the share of the loop's time that it waits."""
            before = loader.figures()
            for _ in range(steps):
                seen.append(joined([next(batches)]))
                time.sleep(step)
            return wait_share(take_snapshot(before, loader.figures(), 1.0))

        deadline, first = time.monotonic() + SECONDS, share(0.06, 10)
        while share(0.06, 10) >= WAIT_SHARE:
            assert time.monotonic() < deadline
        assert first > WAIT_SHARE
        assert 1 < loader.figures()["decoders"] <= 4
        while loader.figures()["decoders"] > 1:
            share(0.3, 2)
            assert time.monotonic() < deadline
    assert len(seen) >= len(reference)
    assert seen[: len(reference)] == reference
