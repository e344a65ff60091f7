"""Scan data before samples are read: the index, and one number for each sample where one is needed.

Owns where a scan runs, in this process or on a Ray cluster, and how its progress is shown. What a
scan reads and where its result is cached is the business of the `Scan`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rayingest.build.description import SourceDescription
from rayingest.build.statistic import SampleStatistic, StatisticScan
from rayingest.formats.indexing import IndexScan
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.subset import Keep, Limit, Subset, subset_mark
from rayingest.storage.index_cache import IndexCache
from rayingest.storage.scan import Scan, scan_locally
from rayingest.util.progress import Bar
from rayingest.util.slow import log_if_slow

if TYPE_CHECKING:
    from rayingest.plan.order.weighted import Weights

T = TypeVar("T")


def run_scan(scan: Scan[T], rank: int, on_ray: bool, shown: bool = False) -> T:
    """Return a scan's result: the cached one, or that of the run by the first process that comes.

    `on_ray`: run it on the Ray cluster that this process is connected to. Progress is shown on a
    terminal after half a second; with `shown` always, at once.
    """
    done_of = (0, 0)

    def describe_wait() -> str:
        if done_of == (0, 0):
            return f"waiting for the {scan.name}, which another process or rank makes"
        return f"making the {scan.name}: {done_of[0]} of {done_of[1]} parts are done"

    bar_options = {"delay": 0.0} if shown else {"delay": 0.5, "leave": False, "disable": None}
    with (
        Bar(desc=f"making the {scan.name}", unit="part", **bar_options) as bar,
        log_if_slow(describe_wait),
    ):

        def progress(done: int, total: int) -> None:
            nonlocal done_of
            done_of = done, total
            bar.total = total
            bar.update(done - bar.n)

        if on_ray and not scan.is_light:
            from rayingest.execute.cluster.scans import scan_on_cluster

            return scan_on_cluster(scan, rank, progress)
        return scan_locally(scan, progress)


@dataclass(frozen=True)
class ScanResult:
    """The results of all scans of the data: the manifest, and numbers for each sample.

    `limits` choose samples; a `Keep` with the results replaces each statistic of `where` or
    `filter`. `lengths` and `weights` are by ordinal, None if the order does not need them. `index`
    is the place of the cached manifest.
    """

    manifest: Manifest
    limits: tuple[Limit, ...]
    lengths: np.ndarray | None
    index: str = field(default="", repr=False)
    weights: Weights | None = None

    @cached_property
    def subset(self) -> Subset:
        """The samples that the limits keep. Raises ConfigError if they keep none."""
        return Subset.whole(self.manifest).through(self.limits)

    @property
    def subset_mark(self) -> str:
        """The limits as a state names them, "" without any."""
        return subset_mark(self.limits)

    @property
    def lengths_mark(self) -> str:
        """16 hex digits of a hash of the lengths, "" without any."""
        if self.lengths is None:
            return ""
        data = np.ascontiguousarray(self.lengths, "<u4").tobytes()
        return hashlib.blake2b(data, digest_size=8).hexdigest()

    @property
    def marks(self) -> dict[str, str]:
        """By name, the marks of all that an order depends on, except the manifest."""
        marks = {
            "subset": self.subset_mark,
            "lengths": self.lengths_mark,
            "weights": "" if self.weights is None else self.weights.mark,
        }
        return {name: mark for name, mark in marks.items() if mark}


def scan_source(
    description: SourceDescription,
    cache: IndexCache,
    rank: int,
    on_ray: bool,
    shown: bool = False,
) -> ScanResult:
    """Run all scans that a description needs; see `run_scan`. Raises ConfigError, DataError."""
    manifest = run_scan(IndexScan.of(cache), rank, on_ray, shown)

    def compute(statistic: SampleStatistic) -> np.ndarray:
        scan = StatisticScan(statistic, manifest, cache, description.work)
        return run_scan(scan, rank, on_ray, shown)

    limits = tuple(
        Keep(one.name, compute(one)) if isinstance(one, SampleStatistic) else one
        for one in description.limits
    )
    lengths = None
    if description.needs_lengths and description.lengths is not None:
        lengths = compute(description.lengths)
    result = ScanResult(manifest, limits, lengths, cache.location)
    weighting = description.weighting
    if weighting is None:
        return result
    by = weighting.by
    values = compute(by) if isinstance(by, SampleStatistic) else by
    return replace(result, weights=weighting.weights(values, result.subset))
