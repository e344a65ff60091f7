"""Build what a `Mixture` describes: scan each source, then plan and stream their samples together.

Owns how the shuffle and the batches of a mixture become those of its sources. The order itself is
the business of `mixed_planner`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from rayingest.build.compatibility import Feature
from rayingest.build.description import (
    Batching,
    Description,
    RankPlan,
    Ranks,
    Shuffle,
    batching_of,
    make_stream,
)
from rayingest.build.mixed_planner import (
    Leaf,
    MixtureScanResult,
    Recipe,
    Weights,
    make_mixed_planner,
    word_of,
)
from rayingest.build.one_source import OneSource, ScanResult
from rayingest.execute.mixed_work import MixedWork
from rayingest.execute.stream import Stream
from rayingest.plan.order.manifest import JoinedManifest
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.randomness import fold
from rayingest.transforms.stages import Stage


@dataclass(frozen=True)
class MixedSources(Description):
    """Several sources as one, by name; a source may be a mixture itself.

    `weights`: the share of each source, by the first step to which the shares apply; None for
    shares in proportion to the sizes of the sources. `until` and `stratified` are as in `mix`.
    """

    sources: Mapping[str, OneSource | MixedSources]
    weights: Weights | None = None
    until: str | int = "first"
    stratified: bool = True

    def __str__(self) -> str:
        return f"{', '.join(self.names)}; {self.shuffling}, {self.batching}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources in the order of `__source__`; "web/news" is in the mixture "web"."""
        return tuple(leaf.name for leaf in self.leaves())

    @property
    def features(self) -> Iterator[Feature]:
        yield Feature.MIX
        yield from super().features
        if self._is_unstratified():
            yield Feature.UNSTRATIFIED
        if len(self.weights or ()) > 1:
            yield Feature.CHANGING_WEIGHTS

    def _is_unstratified(self) -> bool:
        """Return whether this mixture, or an inner one without its own shuffle, is unstratified."""
        inside = (source for source in self.sources.values() if isinstance(source, MixedSources))
        unseeded = (source for source in inside if source.shuffling is None)
        return not self.stratified or any(source._is_unstratified() for source in unseeded)

    def leaves(
        self,
        within: str = "",
        shuffling: tuple[str, Shuffle] | None = None,
        batching: Batching | None = None,
    ) -> Iterator[Leaf[OneSource]]:
        """Yield the sources that are not mixtures, each with its shuffle and its batches."""
        batching = self.batching or batching
        if self.shuffling is not None:
            shuffling = within, self.shuffling
        for name, source in self.sources.items():
            path = within + name
            if isinstance(source, MixedSources):
                yield from source.leaves(f"{path}/", shuffling, batching)
            elif source.shuffling is not None or shuffling is None:
                yield Leaf(path, replace(source, batching=batching))
            else:
                window_of, outer = shuffling
                own = Shuffle(fold("mixture", outer.seed, word_of(path)), None, None)
                shuffled = replace(source, batching=batching, shuffling=own)
                yield Leaf(path, shuffled, outer.window, window_of)

    def with_stage(self, stage: Stage) -> Self:
        sources = {name: source.with_stage(stage) for name, source in self.sources.items()}
        return replace(self, sources=sources)

    @property
    def recipe(self) -> Recipe:
        """All that the order depends on, except the sources' own orders."""
        sources = {
            name: source.recipe if isinstance(source, MixedSources) else None
            for name, source in self.sources.items()
        }
        seed = None if self.shuffling is None else self.shuffling.seed
        return Recipe(sources, self.weights, self.until, self.stratified, seed)

    def work_on(self, scan_result: MixtureScanResult) -> MixedWork:
        """Return the task that workers need in order to read and decode the sources' shards."""
        works = {}
        for number, leaf in enumerate(self.leaves()):
            work = leaf.dataset.work_on(scan_result.parts[leaf.name].manifest)
            works[leaf.name] = replace(work, pipeline=replace(work.pipeline, source=number))
        return MixedWork(works)

    def scan(
        self, rank: int, on_ray: bool, shown: bool = False, world_size: int = 1
    ) -> MixtureScanResult:
        """Return the scan of each source; see `OneSource.scan`."""
        parts = {
            leaf.name: leaf.dataset.scan(rank, on_ray, shown, world_size) for leaf in self.leaves()
        }
        manifest = JoinedManifest.of([part.manifest for part in parts.values()])
        return MixtureScanResult(manifest, (), None, parts=parts)

    def build_planner(
        self, scan_result: ScanResult, rank: int, world_size: int, uneven: bool
    ) -> Planner:
        """Build one rank's planner for scanned data. Raises ConfigError."""
        assert isinstance(scan_result, MixtureScanResult)
        ranks = (rank, world_size, uneven)
        return make_mixed_planner(
            self.recipe, list(self.leaves()), batching_of(self), scan_result, *ranks
        )

    def build_stream(
        self, ranks: Ranks, *, uneven: bool, on_ray: bool, skip: bool, image_backend: str | None
    ) -> tuple[Stream, RankPlan]:
        scan_result = self.scan(ranks.rank, on_ray, world_size=ranks.world_size)
        planner = self.build_planner(scan_result, ranks.rank, ranks.world_size, uneven)
        return make_stream(
            scan_result.manifest,
            planner,
            self.work_on(scan_result),
            skip=skip,
            image_backend=image_backend,
        )
