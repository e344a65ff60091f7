"""The figures of a loader on Ray, and their metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import rayingest as ri
from rayingest.execute.cluster import metrics
from rayingest.plan.figures.histogram import Histogram
from rayingest.plan.figures.metrics import LOOKED_AT, METRICS, NODES, Snapshot
from rayingest.tools import top
from tests.support.streams import images


class Exported:
    """A metric that records its values, by tags; `by_name` has them of all metrics."""

    by_name: ClassVar[dict[str, dict[tuple[str, ...], float]]] = {}

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self.values = self.by_name[name] = {}

    default_tags: ClassVar[dict[str, str]] = {}

    def set_default_tags(self, tags: dict[str, str]) -> None:
        type(self).default_tags = tags

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[tuple(tags.values())] = value


def test_a_loader_has_a_figure_for_every_metric(shards: str, pool_of_1: ri.Pool) -> None:
    """Except for those of a device and the time.

    Waits and steps are counted singly, the workers' figures by node.
    """
    with images(shards, 10).loader(pool=pool_of_1, epochs=1) as loader:
        batches = sum(1 for _ in loader)
        figures = loader.stats()
    there = {figure for metric in METRICS for figure in metric.stages}
    assert there - figures.keys() == {"copy_seconds", "bytes_copied", LOOKED_AT}
    assert sum(figures["wait_durations"]) == sum(figures["step_durations"]) == batches
    assert figures["p95_seconds"].keys() == {"wait", "step", "read", "decode"}
    (node,) = figures[NODES].values()
    for figure in ("read_durations", "decode_durations", "queue_seconds", "bytes_read"):
        assert node[figure] == figures[figure]
    assert sum(node["read_durations"]) > 0


def test_top_sees_what_a_loader_did(
    shards: str, pool_of_1: ri.Pool, cluster: Any, wait_until: Callable[..., None]
) -> None:
    """From Ray's real exports: its rates while it runs; after `close` it is gone, and nothing of it
    is exported any longer.
    """
    board = top.Board()
    job = str(cluster.get_runtime_context().get_job_id())

    def ours(found: Mapping[tuple[str, ...], Any]) -> Any:  # of a rank that no other test has
        return next((of for key, of in found.items() if key[:2] == (job, "4")), None)

    def looked() -> Snapshot | None:
        return ours(board.update(top.scrape(cluster.nodes())))

    def shown() -> bool:
        for _ in range(5):
            next(batches)
            time.sleep(0.02)
        seen = looked()
        return seen is not None and 0 < seen["batches"] < loader.stats()["batches"]

    def is_exported() -> bool:
        return ours(top.parse(top.scrape(cluster.nodes()))) is not None

    with images(shards, 10).loader(pool=pool_of_1, rank=4, world_size=5) as loader:
        batches = chain.from_iterable(repeat(loader))
        wait_until(shown, 60)
        seen = looked()
        assert seen is not None
        assert 0.5 < seen.seconds < 30
        assert seen["max_bytes"] == loader.stats()["max_bytes"]
        assert seen.nodes.keys() == loader.stats()[NODES].keys()
        assert is_exported()
    wait_until(lambda: looked() is None, top._GONE_SECONDS / 2)
    wait_until(lambda: not is_exported(), 30)


def test_metrics_follow_the_figures(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters never fall, histograms count up to each bound; gauges are 0 after `close`."""
    monkeypatch.setattr(metrics, "Gauge", Exported)
    exported = metrics.RayMetrics(0)
    by_name = Exported.by_name
    waits = Histogram()
    waits.add(0.0015)
    exported.record({"wait_seconds": 1.0, "decoders": 2, "wait_durations": waits.counts})
    waits.add(100.0)
    exported.record({"wait_seconds": 3.0, "decoders": 3, "wait_durations": waits.counts})
    ((wait, seconds),) = by_name["rayingest_seconds_total"].items()
    assert (wait[0], seconds) == ("wait", 3.0)
    durations = {le: count for (_, _, le), count in by_name["rayingest_durations_total"].items()}
    assert (durations["0.002"], durations["50"], durations["+Inf"]) == (1, 1, 2)
    assert "0.001" not in durations
    assert list(by_name["rayingest_workers"].values()) == [3.0]
    for blocks in (5, 4, 6):  # one that was counted when its read was ordered was not read
        exported.record({"blocks_read": blocks})
    assert list(by_name["rayingest_blocks_total"].values()) == [6.0]
    exported.close()
    assert list(by_name["rayingest_workers"].values()) == [0.0]
    assert list(by_name["rayingest_blocks_total"].values()) == [6.0]


def test_metrics_name_the_submitted_job(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of `ray job submit`, which the dashboard and the job's logs use; else ""."""
    monkeypatch.setattr(metrics, "Gauge", Exported)
    job = SimpleNamespace(metadata={"job_submission_id": "raysubmit_1"})
    for submission, config in (("", None), ("raysubmit_1", job)):
        if config is not None:
            worker = SimpleNamespace(core_worker=SimpleNamespace(get_job_config=lambda: job))
            monkeypatch.setattr(metrics, "global_worker", worker)
        metrics.RayMetrics(0).close()
        assert Exported.default_tags["SubmissionId"] == submission
