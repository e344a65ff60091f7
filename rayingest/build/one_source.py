"""Build what a `Dataset` describes: scan its one source, then plan and stream its samples.

Owns the description of one source, where its scans run (in this process or on a Ray cluster) and
how their progress is shown, and which verbs select which kind of order. What a scan reads and where
its result is cached is the business of the `Scan`; how a kind orders samples is the business of
`plan.order`; which parts of a description go together is the business of `compatibility`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from rayingest.build.compatibility import Feature
from rayingest.build.description import (
    Batching,
    Description,
    Packed,
    RankPlan,
    Ranks,
    Source,
    add_stage,
    batching_of,
    make_pipeline,
    make_stream,
)
from rayingest.build.statistic import SampleStatistic, StatisticScan, Weighting
from rayingest.errors import ConfigError
from rayingest.execute.stream import Stream
from rayingest.execute.work import SourceWork
from rayingest.formats import get_format
from rayingest.formats.hive import folder_types
from rayingest.formats.protocol import Format, IndexScan
from rayingest.plan.order.kinds import OrderRequest, build
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.planner import Planner, RankSlice
from rayingest.plan.order.subset import Keep, Limit, Part, Skip, Subset, Take, subset_mark
from rayingest.storage.listing import Listing
from rayingest.storage.scan import Progress, Scan, scan_locally
from rayingest.transforms.collate import PackedFields
from rayingest.transforms.expressions import Expression
from rayingest.transforms.padding import Pad
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Select, Stage
from rayingest.util.progress import Bar
from rayingest.util.slow import log_if_slow

if TYPE_CHECKING:
    from rayingest.plan.order.sampler import Sampling
    from rayingest.plan.order.weighted import Weights

T = TypeVar("T")


@dataclass(frozen=True)
class OneSource(Description):
    """Data from one source, with the values of all verbs of a `Dataset`.

    `sampling`: a sampler that decides the order instead of `shuffling`. `seed`: the seed of random
    numbers if there is no `shuffling`. `collate`: the source's own function that makes batches,
    used if `batching` has none. `limits` choose samples, in this order; a `SampleStatistic` among
    them is True for the samples to keep. `order_kind`: a registered kind of order with its
    `order_options`, instead of the kind that the verbs choose.
    """

    source: Source
    stages: tuple[Stage, ...] = ()
    sampling: Sampling | None = None
    seed: int = 0
    collate: Callable[[list[dict[str, Any]]], Any] | None = None
    limits: tuple[Limit | SampleStatistic, ...] = ()
    lengths: SampleStatistic | None = None
    epoch_length: Mapping[str, int] = field(default_factory=dict)
    packing: Packed | None = None
    weighting: Weighting | None = None
    order_kind: str | None = None
    order_options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.source}; {len(self.stages)} stages, {self.shuffling}, {self.batching}"

    def with_stage(self, stage: Stage) -> Self:
        return replace(self, stages=add_stage(self.stages, stage))

    @property
    def needs_lengths(self) -> bool:
        """Whether the order depends on the lengths of samples."""
        batching = self.batching
        return self.packing is not None or (
            batching is not None and (batching.bucketed or batching.max_tokens is not None)
        )

    @property
    def work(self) -> SourceWork:
        """The task that workers need in order to read and decode, whatever the shards."""
        source = self.source
        format_ = get_format(source.format_name)
        return SourceWork(format_, source.storage, self.pipeline, source.strict, source.options)

    def work_on(self, shards: Listing | Manifest) -> SourceWork:
        """Return the task for these shards, with the columns that their folders give."""
        work = self.work
        has_columns = work.format.is_tabular and self.source.folder_columns
        return replace(work, folder_types=folder_types(shards) if has_columns else {})

    @property
    def pipeline(self) -> Pipeline:
        """The work on each sample, and how samples become a batch."""
        seed = self.shuffling.seed if self.shuffling else self.seed
        if self.packing is None:
            return make_pipeline(self.stages, seed, self.batching, self.collate)
        names = self.packing.fields
        pad = self.batching.pad if self.batching else {}
        packed = PackedFields(names, {name: one.value for name, one in pad.items()})
        stages = (*self.stages, Select({name: name for name in names}))
        return Pipeline(stages, seed, packed=packed)

    @property
    def features(self) -> Iterator[Feature]:
        in_batches = self.sampling is not None and self.sampling.in_batches
        for feature in super().features:
            if not (in_batches and feature in {Feature.BATCH, Feature.PARTIAL}):
                yield feature
        used = {
            Feature.FROM_TORCH: self.source.format_name == "index_only",
            Feature.SAMPLER: self.sampling is not None,
            Feature.BATCH_SAMPLER: in_batches,
            Feature.COLLATE_FN: self.collate is not None,
            Feature.LENGTH: self.lengths is not None,
            Feature.PACK: self.packing is not None,
            Feature.WEIGHTED: self.weighting is not None,
            Feature.EPOCH: self.epoch_length,
            Feature.EPOCH_SAMPLES: "samples" in self.epoch_length,
        }
        yield from (feature for feature, is_used in used.items() if is_used)
        yield from map(_feature_of, self.limits)

    def scan(self, rank: int, on_ray: bool, shown: bool = False, world_size: int = 1) -> ScanResult:
        """Run the scans that the description needs, or load their cached results.

        `on_ray`: scan on the connected cluster, once for all ranks. `shown`: always show progress.
        """
        shared = on_ray and world_size > 1
        share = partial(run_shared_scan, rank=rank, world_size=world_size, shown=shown)
        index = UnlistedIndex(self.source, get_format(self.source.format_name))
        if shared and index.format.lists_storage:
            scan, manifest = share(index.open, "index", index.key)
        else:
            with log_if_slow("listing the shards"):
                scan = index.open()
            manifest = run_scan(scan, on_ray, shown)
        cache = scan.cache

        content = ""
        if Feature.FROM_TORCH in set(self.features):
            # Ranks that share no scan must not wait for each other.
            content = "-items" if shared else f"-items-of-rank-{rank}"

        work = self.work_on(manifest)

        def compute(statistic: SampleStatistic) -> np.ndarray:
            scan = StatisticScan(statistic, manifest, cache, work, content)
            if not shared:
                return run_scan(scan, on_ray, shown)
            values: np.ndarray = share(lambda: scan, scan.name, scan.key)[1]
            return values

        limits = tuple(
            Keep(one.name, compute(one)) if isinstance(one, SampleStatistic) else one
            for one in self.limits
        )
        lengths = None
        if self.needs_lengths and self.lengths is not None:
            lengths = compute(self.lengths)
        result = ScanResult(manifest, limits, lengths, cache.location)
        weighting = self.weighting
        if weighting is None:
            return result
        by = weighting.by
        values = compute(by) if isinstance(by, SampleStatistic) else by
        return replace(result, weights=weighting.weights(values, result.subset))

    def build_planner(
        self, scan_result: ScanResult, rank: int, world_size: int, uneven: bool
    ) -> Planner:
        """Build one rank's planner for scanned data. Raises ConfigError."""
        batching = batching_of(self)
        kind, options = _choose_kind(self, batching, scan_result)
        request = OrderRequest(
            scan_result.subset,
            RankSlice(rank, world_size, uneven),
            _parameters(self, batching),
            self.epoch_length,
            scan_result.lengths,
            scan_result.marks,
            options,
        )
        return build(kind, request)

    def build_stream(
        self, ranks: Ranks, *, uneven: bool, on_ray: bool, skip: bool, image_backend: str | None
    ) -> tuple[Stream, RankPlan]:
        scan_result = self.scan(ranks.rank, on_ray, world_size=ranks.world_size)
        planner = self.build_planner(scan_result, ranks.rank, ranks.world_size, uneven)
        return make_stream(
            scan_result.manifest,
            planner,
            self.work_on(scan_result.manifest),
            skip=skip,
            image_backend=image_backend,
        )


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


@dataclass(frozen=True)
class UnlistedIndex:
    """The index of a source whose shards are still to be listed."""

    source: Source
    format: Format

    @property
    def key(self) -> str:
        """A key that is equal in every process that has the same description of the source."""
        return hashlib.blake2b(repr(vars(self.source)).encode(), digest_size=16).hexdigest()

    def open(self) -> IndexScan:
        """List the shards, and return the scan of them. Raises ConfigError, DataError."""
        return IndexScan(self.source.index_cache(self.format), self.format)


def run_scan(scan: Scan[T], on_ray: bool, shown: bool = False) -> T:
    """Return a scan's result: the cached one, or that of the run by the first process that comes.

    `on_ray`: run it on the Ray cluster that this process is connected to. Progress is shown on a
    terminal after half a second; with `shown` always, at once.
    """
    with _progress_of(scan.name, shown) as progress:
        if on_ray and not scan.is_light:
            from rayingest.execute.cluster.scans import scan_on_cluster

            return scan_on_cluster(scan, progress)
        return scan_locally(scan, progress)


def run_shared_scan(
    open_scan: Callable[[], Scan[T]],
    name: str,
    key: str,
    *,
    rank: int,
    world_size: int,
    shown: bool = False,
) -> tuple[Any, T]:
    """Return a scan and its result, made once for all ranks of the job on the cluster."""
    from rayingest.execute.cluster.scans import share_scan

    with _progress_of(name, shown) as progress:
        return share_scan(open_scan, name, key, rank, world_size, progress)


@contextmanager
def _progress_of(name: str, shown: bool) -> Iterator[Progress]:
    """Show the progress of a scan, and log it if the scan is slow."""
    done_of = (0, 0)

    def describe_wait() -> str:
        if done_of == (0, 0):
            return f"waiting for the {name}, which another process or rank makes"
        return f"making the {name}: {done_of[0]} of {done_of[1]} parts are done"

    bar_options = {"delay": 0.0} if shown else {"delay": 0.5, "leave": False, "disable": None}
    with (
        Bar(desc=f"making the {name}", unit="part", **bar_options) as bar,
        log_if_slow(describe_wait),
    ):

        def progress(done: int, total: int) -> None:
            nonlocal done_of
            done_of = done, total
            bar.total = total
            bar.update(done - bar.n)

        yield progress


def _feature_of(limit: Limit | SampleStatistic) -> Feature:
    if isinstance(limit, SampleStatistic):
        return Feature.WHERE if isinstance(limit.fn, Expression) else Feature.FILTER
    kinds = {Take: Feature.TAKE, Skip: Feature.SKIP, Part: Feature.SPLIT}
    return kinds[type(limit)]


def _choose_kind(
    dataset: OneSource, batching: Batching, scan_result: ScanResult
) -> tuple[str, dict[str, Any]]:
    """Return the order kind of a description, and the kind's own options. Raises ConfigError."""
    if dataset.order_kind is not None:
        return dataset.order_kind, dict(dataset.order_options)
    if dataset.packing is not None:
        _check_packed_pads(dataset.packing, batching.pad)
        return "packed", {"packing": dataset.packing.rows}
    if batching.max_tokens is not None:
        multiple = max((pad.multiple_of for pad in batching.pad.values()), default=1)
        return "budgeted", {"max_tokens": batching.max_tokens, "multiple_of": multiple}
    if dataset.sampling is not None:
        return "sampler", {"sampling": dataset.sampling}
    if dataset.weighting is not None:
        return "weighted", {"weights": scan_result.weights, "draws": dataset.weighting.draws}
    return "window", {}


def _parameters(dataset: OneSource, batching: Batching) -> dict[str, Any]:
    """Return the options of the batches and the shuffle by the names that orders use."""
    shuffling = {} if dataset.shuffling is None else dict(vars(dataset.shuffling))
    return {"batch": batching.size, "partial": batching.partial, **shuffling}


def _check_packed_pads(packed: Packed, pads: Mapping[str, Pad]) -> None:
    """Raise ConfigError for a pad of an unpacked field, or with more than a value."""
    for name, pad in pads.items():
        if name not in packed.fields:
            raise ConfigError(
                f"pad: field {name!r} is not packed; packed are "
                f"{', '.join(map(repr, packed.fields))}"
            )
        if pad != Pad(value=pad.value):
            raise ConfigError(
                f"pad: a packed field such as {name!r} takes only the value, "
                "as in ri.Pad(value=-100)"
            )
