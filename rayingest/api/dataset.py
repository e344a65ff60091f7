"""The public face: a `Dataset` says what to read, what to do with each sample, in which order, in batches of what size.

Immutable and picklable: every method returns a new one. It owns no state and no processes; `loader` makes those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from rayingest.build.description import Batching, Description, Fields, Packed, Padding, Shuffle
from rayingest.build.loader import make_loader
from rayingest.build.planner import make_planner, resolve_order
from rayingest.build.ranks import Ranks
from rayingest.build.scan import ScanResult, scan
from rayingest.build.statistic import LengthOf, SampleStatistic
from rayingest.build.stream import planned
from rayingest.build.to_ray import make_ray_dataset
from rayingest.build.weights import By, Weighting, one_weight
from rayingest.errors import ConfigError
from rayingest.execute.stream import Stream
from rayingest.options.checked import checked, one_of
from rayingest.options.types import Count, Flag, Function, Length, Positive, Seed, Text
from rayingest.plan.order.manifest import Population
from rayingest.plan.order.order import PARTIALS, Order
from rayingest.plan.order.packing import Packing
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.subset import Part, Skip, Take, split_parts
from rayingest.storage.redact import redact
from rayingest.transforms.expressions import Expression
from rayingest.transforms.functions import name_of
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Map, MapBatches, Select, Stage
from rayingest.util.slow import log_if_slow

if TYPE_CHECKING:
    from rayingest.trainer.loader import PlanView

_SHOWN = 3


def _one_length(given: Mapping[str, Any]) -> None:
    if sum(value is not None for value in given.values()) != 1:
        raise ConfigError("an epoch is samples=... long, or passes=...: give one of them")


def _one_limit(given: Mapping[str, Any]) -> None:
    if (given.get("size") is None) == (given.get("max_tokens") is None):
        raise ConfigError(
            "a batch is of so many samples, as in batch(256), or of max_tokens=...: give one of them"
        )


@dataclass(frozen=True, repr=False)
class Dataset(Description):
    """A description of data and of what to do with it. Made by `sources.read_...` and `interop.from_...`."""

    def __repr__(self) -> str:
        urls = [self.urls] if isinstance(self.urls, str) else self.urls
        shown = ", ".join(map(redact, urls[:_SHOWN])) + (", ..." if len(urls) > _SHOWN else "")
        return f"<Dataset {self.format_name} of {shown}; {len(self.stages)} stages, {self.shuffling}, {self.batching}>"

    def select(self, *unnamed: str, **new: str) -> Dataset:
        """Keep only these fields, renamed: `select(image="jpg")` calls the field `jpg` `image`. Others are not read."""
        if unnamed:
            raise ConfigError(
                f"select({unnamed[0]!r}): say what to call it, as in select(image={unnamed[0]!r})"
            )
        return self._with(Select(new))

    def decode(self, **fields: Callable[..., Any]) -> Dataset:
        """Decode these fields with these functions, `fn(value)` or `fn(value, rng)`; the rest by extension or type."""
        return self._with(Decode(fields))

    def map(self, fn: Callable[..., Any]) -> Dataset:
        """Put `fn(sample)` or `fn(sample, rng)`, a dict of fields, in each sample's place.

        A class is set up once per worker and then called. `rng` is a numpy Generator of the sample's own, the same in
        every run with the same seed, wherever the sample is decoded.
        """
        return self._with(Map(fn))

    def map_batches(self, fn: Callable[..., Any]) -> Dataset:
        """Put `fn(columns)`, a dict of equally long columns, in the place of several samples at a time.

        How many come together is not promised, so every row must be treated by itself. With a second parameter, `rng`,
        it also gets one generator a row.
        """
        return self._with(MapBatches(fn))

    @checked()
    def where(self, expression: Text) -> Dataset:
        """Keep only the samples of which an expression on their fields holds, as in `where("width >= 256")`.

        The fields are those that the stages so far give. Its language is a small part of Python's: names of fields,
        constants, comparisons, `in`, `is None`, `and`, `or`, `not`, arithmetic, `len`, and items (`json["width"]`). It
        is evaluated once for all of the data, as `filter` is; of what it does not need, nothing is decoded.
        """
        self._permit("where")
        made = Expression(expression)
        measure = SampleStatistic(f"where({made.text})", made, self.stages, made.names)
        return replace(self, limits=(*self.limits, measure))

    @checked()
    def filter(self, fn: Function) -> Dataset:
        """Keep only the samples for which `fn(sample)` is True, as they are after the stages so far.

        It is called once for every sample, when a loader is first made; the answers are kept beside the index, and made
        again when the data or the code of the stages or of `fn` has changed. `__index__` stays a sample's place in all
        of the data. Random stages come after it. A sample that cannot be decoded is an error, whatever `on_error` is.
        """
        self._permit("filter")
        measure = SampleStatistic(f"filter({name_of(fn)})", fn, self.stages)
        return replace(self, limits=(*self.limits, measure))

    @checked()
    def length(self, of: Length) -> Dataset:
        """Say how long a sample is, for `batch(bucketed=True)`: as long as a field, or as `of(sample)` says.

        A field's length is what `len` says of it, or the whole number that it is, after the stages so far. It is found
        once for all of the data and kept beside the index, as what `filter` says is.
        """
        if isinstance(of, str):
            return replace(
                self,
                lengths=SampleStatistic(
                    f"length({of})", LengthOf(of), self.stages, (of,), gives=int
                ),
            )
        return replace(
            self, lengths=SampleStatistic(f"length({name_of(of)})", of, self.stages, gives=int)
        )

    @checked()
    def pack(self, length: Positive, field: Fields = "tokens", cut: Flag = True) -> Dataset:
        """Pack samples into rows of `length` values: a batch of 16 is then 16 packed rows. Other fields are left out.

        A batch has the packed fields as [rows, length], `position_ids` and `segment_ids` (int32, of the same shape; the
        latter 0 where a row is filled up), and `cu_seqlens` (int32): where segments begin, and the last ends, in the
        rows laid behind one another. `__index__` has the sample of each segment, -1 where it fills a row up.

        Which sample goes where is planned, window by window, from what `.length` says, or else the first field's own
        length after the stages so far. `.batch(pad={"labels": ri.Pad(value=-100)})` says what rows are filled up with.

        Args:
            length: values of a packed row.
            field: what is packed, a field or a list of fields that are of the same length in every sample.
            cut: lay samples behind one another and cut at every `length`, for pretraining. False: no sample is cut,
                each goes where it fits best, for fine-tuning; none may be longer than a row.
        """
        self._permit("pack")
        names = (field,) if isinstance(field, str) else tuple(field)
        packed = replace(self, packing=Packed(Packing(length, cut), names))
        return packed if self.lengths is not None else packed.length(names[0])

    @checked(one_weight)
    def weighted(
        self, by: By | None = None, *, balance: By | None = None, samples: Positive | None = None
    ) -> Dataset:
        """Draw samples as often as their weights say, instead of each once an epoch; needs `.shuffle`.

        In an epoch each sample comes as often as is its share of the draws, rounded up or down by chance, and each time
        with random numbers of its own. Repeats of a sample are mixed within a window.

        Args:
            by: each sample's weight, 0 or more: a field, as it is after the stages so far, or a function of the sample,
                found once for all of the data and kept beside the index; or an array with an entry for each sample of
                all the data.
            balance: instead, each sample's class, in the same ways; all classes then come equally often.
            samples: how many an epoch draws. Default: as many as there are.
        """
        self._permit("weighted")
        return replace(self, weighting=Weighting.of(by, balance, samples, self.stages))

    @checked()
    def take(self, count: Positive) -> Dataset:
        """Keep only the first `count` samples, in file order, of those there are so far."""
        self._permit("take")
        return replace(self, limits=(*self.limits, Take(count)))

    @checked()
    def skip(self, count: Count) -> Dataset:
        """Leave out the first `count` samples, in file order, of those there are so far."""
        self._permit("skip")
        return replace(self, limits=(*self.limits, Skip(count)))

    def split(self, *fractions: float, seed: int = 0) -> tuple[Dataset, ...]:
        """Data sets of these parts of the samples, near enough, without a sample in common: `split(0.9, 0.1)`.

        Which part a sample is in is a function of the seed, the name of its shard's file and its number there. So it
        stays where it is when shards are added, or samples at a shard's end, or all is copied to another folder. To
        split a part again takes another seed: by the same one it has nothing in the other parts.
        """
        self._permit("split")
        if any(isinstance(limit, Part) and limit.seed == seed for limit in self.limits):
            raise ConfigError(
                f"split: this is a part already of a split with seed={seed}; give another seed"
            )
        return tuple(
            replace(self, limits=(*self.limits, part)) for part in split_parts(fractions, seed)
        )

    @checked(_one_length)
    def epoch(self, *, samples: Positive | None = None, passes: Positive | None = None) -> Dataset:
        """Let an epoch be of another length than once through the data.

        Args:
            samples: so many, rounded down to whole batches; the next epoch goes on behind them. Needs partial="drop".
            passes: so many times through the data, each in an order and with random numbers of its own.
        """
        length = {"samples": samples, "passes": passes}
        return replace(
            self, epoch_length={name: value for name, value in length.items() if value is not None}
        )

    @checked()
    def shuffle(
        self, seed: Seed = 0, window: Positive | None = None, lanes: Positive | None = None
    ) -> Dataset:
        """Mix the samples, anew in every epoch.

        Args:
            seed: from 0 to 2**64 - 1; the order is a function of it, of the epoch and of the data alone.
            window: how many samples, all ranks counted, are mixed together; shards and blocks are shuffled as wholes
                too. Default: 512 MiB of raw samples, at least 16 batches.
            lanes: how many parts of the data are read side by side; divides the batch. Default: by the data's size.
        """
        self._permit("shuffle")
        return replace(self, shuffling=Shuffle(seed, window, lanes))

    @checked(_one_limit)
    def batch(
        self,
        size: Positive | None = None,
        *,
        max_tokens: Positive | None = None,
        partial: Annotated[str, one_of(*PARTIALS)] = "drop",
        collate: Function | None = None,
        bucketed: Flag = False,
        pad: Padding | None = None,
    ) -> Dataset:
        """Take `size` samples a step, all ranks together, or as many as `max_tokens` hold.

        Args:
            size: the global batch; each rank gets its slice of it.
            max_tokens: instead, any number of samples a rank: in each window those of similar `length`, as many as,
                padded to the longest, come to no more than this. All ranks have as many steps; the plan is one for this
                number of ranks, and a state is refused by another number.
            partial: what to do with the samples left at the end: "drop" them, "pad" the batch with repeats flagged by
                `__valid__`, or give a "short" batch.
            collate: instead of stacking and padding, a function of a rank's samples (a list of dicts) that returns a
                dict of arrays or lists with the rows as first axis.
            bucketed: in each window, put samples of similar `length` into the same step, so that less is padded. Which
                lengths come when is drawn anew in every epoch.
            pad: by field, how it is padded, as in `{"tokens": ri.Pad(value=-100, multiple_of=8, mask=True)}`.
        """
        if self.sampling is not None and self.sampling.in_batches:
            raise ConfigError(
                "batch: the batches are the batch_sampler's; leave one of the two out"
            )
        if bucketed or max_tokens is not None:
            self._permit("batch(bucketed=True)" if bucketed else "batch(max_tokens=...)")
        if collate is not None and self.collate is not None:
            raise ConfigError(
                "batch: collate beside the collate_fn of from_torch; leave one of the two out"
            )
        if pad and (collate is not None or self.collate is not None):
            raise ConfigError(
                "batch(pad=...) is for batches that are not made by a collate function: leave one out"
            )
        return replace(
            self, batching=Batching(size, partial, collate, bucketed, dict(pad or {}), max_tokens)
        )

    loader = make_loader

    to_ray = make_ray_dataset

    def planned(
        self, ranks: Ranks, *, uneven: bool, on_ray: bool, skip: bool, image_backend: str | None
    ) -> tuple[Stream, PlanView]:
        known = self.scan(ranks.rank, on_ray)
        planner = self.planner(known, ranks.rank, ranks.world_size, uneven)
        return planned(known, planner, self.work, skip=skip, image_backend=image_backend)

    def scan(self, rank: int, on_ray: bool, shown: bool = False) -> ScanResult:
        """What is known of the data before it is read, kept or found now. `on_ray`: by the connected cluster."""
        with log_if_slow("listing the shards"):
            cache = self.index_cache()
        return scan(self, cache, rank, on_ray, shown)

    def order(self, data: Population) -> Order:
        """The order's parameters for this data, which is a manifest's view. Raises ConfigError."""
        return resolve_order(self, data)

    def planner(self, known: ScanResult, rank: int, world_size: int, uneven: bool) -> Planner:
        """A rank's part of the order for this data. Raises ConfigError."""
        return make_planner(self, known, rank, world_size, uneven)

    def _permit(self, what: str) -> None:
        """ConfigError where a sampler, and not this, says which samples come, and when."""
        if self.sampling is not None:
            raise ConfigError(f"{what}: the order is the sampler's; leave one of the two out")

    def _with(self, stage: Stage) -> Dataset:
        made = replace(self, stages=(*self.stages, stage))
        Pipeline(made.stages, 0)  # refuses at once what cannot work
        return made
