"""Mixtures: several data sets as one, of whose samples each batch has its share.

Owns what `ri.mix` takes, and what a mixture, which is a `Dataset` itself, makes of the others' methods: what is done
with samples is done with those of every source; which samples there are is said of sources before they are mixed. How
it becomes an order is the business of `mixed_ordering`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from rayingest.api.dataset import Dataset
from rayingest.api.stream import RecordStream
from rayingest.build.description import Batching, Shuffle
from rayingest.build.mixed_planner import (
    Leaf,
    MixtureScanResult,
    Recipe,
    Weights,
    make_mixed_planner,
    word_of,
)
from rayingest.build.planner import batching_of
from rayingest.build.scan import ScanResult
from rayingest.errors import ConfigError
from rayingest.execute.mixed_work import MixedWork
from rayingest.execute.work import SourceWork
from rayingest.options.checked import OptionTypeError, checked, option_type
from rayingest.options.types import Flag, Length, Positive, Seed
from rayingest.plan.order.keys import fold
from rayingest.plan.order.manifest import JoinedManifest
from rayingest.plan.order.mixed import MixedPlanner
from rayingest.plan.order.mixture import UNTIL
from rayingest.storage.index_cache import IndexCache
from rayingest.transforms.stages import Stage

_NOT_OF_MIXTURES = ("pack", "weighted", "batch(bucketed=True)", "batch(max_tokens=...)")
"""What neither a mixture nor its sources can have."""


def _sources(value: Any) -> dict[str, Dataset]:
    if not isinstance(value, Mapping):
        raise TypeError
    if not value:
        raise OptionTypeError("it is empty")
    for name, source in value.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise OptionTypeError(f"{name!r} is no name: text without '/'")
        if not isinstance(source, Dataset):
            raise OptionTypeError(f"{name!r} is a {type(source).__name__}")
        _check_source(name, source)
    return dict(value)


def _check_source(name: str, source: Dataset) -> None:
    """OptionTypeError for a data set that cannot be mixed."""
    has = {
        ".batch(...): batch the mixture": source.batching and source.sampling is None,
        "a sampler, and the order is the mixture's": source.sampling,
        ".epoch(...): until says how long the mixture is": source.epoch_length,
        "no end: mix the partitions of a stream in what gives their records": isinstance(
            source, RecordStream
        ),
        ".pack(...): a mixture cannot be packed, nor its sources": source.packing,
        ".weighted(...): a mixture has weights of its own, of sources": source.weighting,
        "a collate_fn: give .batch(collate=...) of the mixture": source.collate,
    }
    for what in [what for what, given in has.items() if given]:
        raise OptionTypeError(f"{name!r} has {what}")
    if isinstance(source, Mixture) and len(source.weights or ()) > 1:
        raise OptionTypeError(
            f"{name!r} has weights that change, at steps that only the outermost mixture has"
        )


def _weights(value: Any) -> dict[int, dict[str, float]]:
    if not isinstance(value, Mapping) or not value:
        raise TypeError
    by_step = value if all(isinstance(step, int) for step in value) else {0: value}
    for step, weights in by_step.items():
        if isinstance(step, bool) or step < 0 or not isinstance(weights, Mapping):
            raise TypeError
        for name, weight in weights.items():
            if (
                isinstance(weight, bool)
                or not isinstance(weight, (int, float))
                or not 0 <= weight < float("inf")
            ):
                raise OptionTypeError(f"{weight!r} for {name!r} is no weight")
        if not any(weights.values()):
            raise OptionTypeError(f"from step {step} on all weights are 0")
    if 0 not in by_step:
        raise OptionTypeError("it does not say which weights hold from step 0 on")
    return {int(step): dict(by_step[step]) for step in sorted(by_step)}


def _until(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError
    if value not in UNTIL if isinstance(value, str) else value < 1:
        raise ValueError
    return value


Sources = Annotated[
    Mapping[str, Any], option_type("data sets by name, as in {'web': a, 'code': b}", _sources)
]
GivenWeights = Annotated[
    Mapping[Any, Any],
    option_type(
        "numbers by source, as in {'web': 7, 'code': 3}, or such by step, as in {0: ..., 10_000: ...}",
        _weights,
    ),
]
Until = Annotated[str | int, option_type("'first', 'all', or how many samples", _until)]


def _same_sources(given: Mapping[str, Any]) -> None:
    names, by_step = given["sources"], given.get("weights") or {}
    for step, weights in by_step.items():
        at = f" from step {step} on" if len(by_step) > 1 else ""
        for name in [*names, *weights]:
            if name not in weights:
                raise ConfigError(f"mix: there is no weight for {name!r}{at}; 0 is for none of it")
            if name not in names:
                raise ConfigError(
                    f"mix: there is a weight for {name!r}{at}; the sources are {', '.join(names)}"
                )
    for name in names if by_step else ():
        if not any(weights[name] for weights in by_step.values()):
            raise ConfigError(f"mix: the weight of {name!r} is always 0: leave it out")


@checked(_same_sources)
def mix(
    sources: Sources,
    weights: GivenWeights | None = None,
    until: Until = "first",
    stratified: Flag = True,
) -> Mixture:
    """Several data sets as one: after any number of samples, each source has had its share of them within one sample.

    Each source has an order and a time of its own: once it is through, it begins anew, in another order. They may be of
    different formats, with stages of their own, as long as their samples have the same fields in the end. A source may
    be a mixture, whose proportions then hold among its own samples. Batches have `__source__` (int64: the place of each
    row's source in the mixture's `names`), and `__index__` counts in that source.

    `.shuffle` gives each source that has no shuffle of its own one, with its own seed; the window counts all sources'
    samples. Stages after `mix` are those of all sources. What leaves samples out (`where`, `take`, ...) comes before.
    Neither a mixture nor its sources can be packed, bucketed, given a budget of tokens, or `weighted`.

    Args:
        sources: by name.
        weights: each source's share of the samples, in any unit; where these change, by the step of the run, counted
            through all epochs: `{0: {"web": 9, "code": 1}, 10_000: {"web": 1, "code": 1}}`. Default: how many samples
            each has.
        until: where an epoch ends: when the "first" source is once through, when "all" have been, or after so many
            samples; with partial="drop" at the last whole batch before. The next epoch goes on behind it.
        stratified: each batch has its exact share of every source, and so has, nearly, each rank's part of it, and
            weights change at their very step. False: the shares vary as by chance, and are exact in every 16 batches,
            so that a change of weights is spread over up to 16; needs `.shuffle`.
    """
    return Mixture(sources=sources, weights=weights, until=until, stratified=stratified)


@dataclass(frozen=True, repr=False)
class Mixture(Dataset):
    """What `mix` gives; its options as there. `weights` None: in proportion to the samples."""

    format_name: str = "mixture"
    urls: str | tuple[str, ...] = ()
    sources: Mapping[str, Dataset] = field(default_factory=dict)
    weights: Weights | None = None
    until: str | int = "first"
    stratified: bool = True

    def __repr__(self) -> str:
        return f"<Mixture of {', '.join(self.names)}; {self.shuffling}, {self.batching}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The sources by the numbers in `__source__`; those of a mixture among them have its name too: "web/news"."""
        return tuple(leaf.name for leaf in self.leaves())

    def leaves(
        self,
        within: str = "",
        shuffling: tuple[str, Shuffle] | None = None,
        batching: Batching | None = None,
    ) -> Iterator[Leaf[Dataset]]:
        """All sources that are no mixtures, in order, with the shuffle and the batching that they get."""
        batching = self.batching or batching
        if self.shuffling is not None:
            shuffling = within, self.shuffling
        for name, source in self.sources.items():
            path = within + name
            if isinstance(source, Mixture):
                yield from source.leaves(f"{path}/", shuffling, batching)
            elif source.shuffling is not None or shuffling is None:
                yield Leaf(path, replace(source, batching=batching))
            else:
                given_in, given = shuffling
                own = Shuffle(fold("mixture", given.seed, word_of(path)), None, None)
                yield Leaf(
                    path, replace(source, batching=batching, shuffling=own), given.window, given_in
                )

    @property
    def _recipe(self) -> Recipe:
        """What the order of the mixture depends on, beside its sources' own."""
        sources = {
            name: source._recipe if isinstance(source, Mixture) else None
            for name, source in self.sources.items()
        }
        seed = None if self.shuffling is None else self.shuffling.seed
        return Recipe(sources, self.weights, self.until, self.stratified, seed)

    def shuffle(
        self, seed: Seed = 0, window: Positive | None = None, lanes: Positive | None = None
    ) -> Dataset:
        """Mix the samples of each source that has no shuffle of its own; see `mix`."""
        if lanes is not None:
            raise ConfigError(
                "shuffle(lanes=...) of a mixture: each source has lanes of its own; say it of the sources"
            )
        return super().shuffle(seed, window)

    def length(self, of: Length) -> Dataset:
        """Refused: nothing that needs lengths is done with mixtures."""
        self._permit("length")
        return self

    def epoch(self, *, samples: Positive | None = None, passes: Positive | None = None) -> Dataset:
        """Refused: `until` says how long an epoch is."""
        raise ConfigError("epoch(...) of a mixture: ri.mix(..., until=...) says how long it is")

    @property
    def work(self) -> MixedWork:
        works = {}
        for number, leaf in enumerate(self.leaves()):
            work = leaf.dataset.source_work
            works[leaf.name] = replace(work, pipeline=replace(work.pipeline, source=number))
        return MixedWork(works)

    @property
    def source_work(self) -> SourceWork:
        raise ConfigError(
            f"this is done with one source, not with a mixture of {', '.join(self.names)}"
        )

    def index_cache(self) -> IndexCache:
        raise ConfigError(
            f"this is done with one source, not with a mixture of {', '.join(self.names)}"
        )

    def scan(self, rank: int, on_ray: bool, shown: bool = False) -> MixtureScanResult:
        parts = {leaf.name: leaf.dataset.scan(rank, on_ray, shown) for leaf in self.leaves()}
        return MixtureScanResult(
            JoinedManifest.of([part.manifest for part in parts.values()]), (), None, parts=parts
        )

    def planner(self, known: ScanResult, rank: int, world_size: int, uneven: bool) -> MixedPlanner:
        assert isinstance(known, MixtureScanResult)
        leaves = list(self.leaves())
        return make_mixed_planner(
            self._recipe, leaves, batching_of(self), known, rank, world_size, uneven
        )

    def _permit(self, what: str) -> None:
        if what in _NOT_OF_MIXTURES:
            raise ConfigError(f"{what} of a mixture: neither a mixture nor its sources can have it")
        if what != "shuffle":
            raise ConfigError(f"{what} of a mixture: it is for the sources, before they are mixed")

    def _with(self, stage: Stage) -> Mixture:
        return replace(
            self, sources={name: source._with(stage) for name, source in self.sources.items()}
        )
