"""Having a scan made: here or by a Ray cluster, with its progress shown; and all that a data set needs of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from rayingest.util.progress import Bar
from rayingest.build.description import Description
from rayingest.formats.indexing import IndexScan
from rayingest.build.statistic import SampleStatistic, StatisticScan
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.subset import Keep, Limit, View, view_mark
from rayingest.plan.order.weighted import Weights
from rayingest.util.slow import log_if_slow
from rayingest.storage.index_cache import IndexCache
from rayingest.storage.scan import Scan, scan_locally

T = TypeVar("T")


def make(scan: Scan[T], rank: int, on_ray: bool, shown: bool = False) -> T:
    """What is kept, or made now by whoever comes first. `on_ray`: by the cluster that this process is connected to.

    Progress is shown on a terminal where it takes long, or in any case where it is to be `shown`.
    """

    done_of = (0, 0)

    def words() -> str:
        if done_of == (0, 0):
            return f"waiting for the {scan.name}, which another process or rank is making"
        return f"making the {scan.name}: {done_of[0]} of {done_of[1]} parts are done"

    how = {"delay": 0.0} if shown else {"delay": 0.5, "leave": False, "disable": None}
    with Bar(desc=f"making the {scan.name}", unit="part", **how) as bar, log_if_slow(words):

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
    """What is known of a data set before it is read: its manifest, and what there is to know of every sample.

    `limits` have what measures say in the measures' places; `lengths` and `weights` are by ordinal, None where nobody
    needs any. `index` is where the manifest is kept.
    """

    manifest: Manifest
    limits: tuple[Limit, ...]
    lengths: np.ndarray | None
    index: str = field(default="", repr=False)
    weights: Weights | None = None

    @cached_property
    def view(self) -> View:
        """The samples there are. ConfigError where there is none."""
        return View.whole(self.manifest).through(self.limits)

    @property
    def view_mark(self) -> str:
        """What a state says of the view, "" for the whole."""
        return view_mark(self.limits)

    @property
    def lengths_mark(self) -> str:
        """16 hex digits of the lengths, "" without them."""
        if self.lengths is None:
            return ""
        return hashlib.blake2b(np.ascontiguousarray(self.lengths, "<u4").tobytes(), digest_size=8).hexdigest()

    @property
    def weights_mark(self) -> str:
        """16 hex digits of the weights, "" without them."""
        return "" if self.weights is None else self.weights.mark


def scan(dataset: Description, cache: IndexCache, rank: int, on_ray: bool, shown: bool = False) -> ScanResult:
    """All scans that the data set needs, each kept or made now."""
    manifest = make(IndexScan.of(cache), rank, on_ray, shown)

    def measured(measure: SampleStatistic) -> np.ndarray:
        return make(StatisticScan(measure, manifest, cache, dataset.source_work), rank, on_ray, shown)

    limits = (Keep(one.name, measured(one)) if isinstance(one, SampleStatistic) else one for one in dataset.limits)
    lengths = measured(dataset.lengths) if dataset.needs_lengths and dataset.lengths is not None else None
    known = ScanResult(manifest, tuple(limits), lengths, cache.location)
    if dataset.weighting is None:
        return known
    by = dataset.weighting.by
    found = measured(by) if isinstance(by, SampleStatistic) else by
    return replace(known, weights=dataset.weighting.weights(found, known.view))
