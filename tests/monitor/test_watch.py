"""The watch of a loader: how often it looks, what it logs, and that it keeps nothing alive."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Mapping
from typing import Any

import pytest

from rayingest.monitor.watch import LoaderWatch
from rayingest.plan.figures.metrics import take_snapshot


class Loader:
    """The figures of a loader whose loop waits for decoding for half of its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.share = 0.5

    def __call__(self) -> dict[str, Any]:
        waited = self.now * self.share
        return {
            "batches": int(self.now),
            "wait_seconds": waited,
            "step_seconds": self.now - waited,
            "stall_decode_seconds": waited,
            "decoders": 1,
        }


class Kept:
    """Metrics that keep the figures they record."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []
        self.closed = 0

    def record(self, figures: Mapping[str, Any]) -> None:
        self.records.append(figures)

    def close(self) -> None:
        self.closed += 1


def test_it_looks_once_a_second_and_logs_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """However often `tick` is called, and only while the loop waits."""
    loader, kept = Loader(), Kept()
    watch = LoaderWatch(kept, clock=lambda: loader.now)
    watch.attach(loader)
    with caplog.at_level(logging.WARNING, "rayingest"):
        for tick in range(1250):
            loader.now = tick / 10
            watch.tick()
    assert 100 <= len(kept.records) <= 125
    assert [record.message for record in caplog.records] == 2 * [
        "decode: the loop waits 50% of its time, 100% of that for decoding; workers=2 instead of 1"
    ]
    assert watch.findings(loader())["bottleneck"] == "decode"
    loader.share = 0.0
    caplog.clear()
    for _ in range(1250):
        loader.now += 0.1
        watch.tick()
    assert not caplog.records


def test_looks_that_take_long_are_taken_less_often() -> None:
    """Looks take 1 % of a CPU at most; a diagnosis still covers ten seconds."""
    loader, kept, used = Loader(), Kept(), [0.0]

    def figures() -> dict[str, Any]:
        used[0] += 0.03
        return loader()

    watch = LoaderWatch(kept, clock=lambda: loader.now, cpu=lambda: used[0])
    watch.attach(figures)
    for tick in range(1000):
        loader.now = tick / 10
        watch.tick()
    assert 30 <= len(kept.records) <= 35
    assert used[0] <= 0.01 * loader.now + 0.03
    assert 10 <= loader.now - watch._looks[0][0] < 10 + 2 * 3.1


def test_the_last_figures_are_recorded_when_the_loader_is_closed() -> None:
    """Even of a short-lived loader.

    Afterwards nothing is recorded and the loader is not kept alive.
    """
    loader, kept = Loader(), Kept()
    watch = LoaderWatch(kept, clock=lambda: 0.0)
    watch.attach(loader)
    watch.tick()
    loader.now = 0.5
    watch.close()
    assert [record["wait_seconds"] for record in kept.records] == [0.0, 0.25]
    assert kept.closed == 1
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    watch.tick()
    assert len(kept.records) == 2


def test_counters_are_differences_and_gauges_are_values() -> None:
    """Between two looks, also by node, and for nodes that joined in between."""
    before = {"samples": 10, "decoders": 1, "nodes": {"a": {"bytes_read": 5}}}
    after = {
        "samples": 30,
        "decoders": 4,
        "word": "x",
        "nodes": {"a": {"bytes_read": 7}, "b": {"bytes_read": 3}},
    }
    seen = take_snapshot(before, after, 2.0)
    assert (seen.seconds, seen.figures) == (2.0, {"samples": 20, "decoders": 4})
    assert seen.nodes == {"a": {"bytes_read": 2}, "b": {"bytes_read": 3}}
    assert seen["what is not there"] == 0
