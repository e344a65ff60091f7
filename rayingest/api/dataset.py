"""Offer data from one source: `Dataset`, with all verbs.

Owns the verbs that choose, weigh, pack and order samples. Immutable and picklable: every verb
returns a new `Dataset`. It holds no state and no processes; `loader` starts those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayingest.api.data import FiniteData
from rayingest.build.compatibility import Feature
from rayingest.build.description import Fields, Packed
from rayingest.build.one_source import OneSource
from rayingest.build.statistic import By, LengthOf, SampleStatistic, Weighting, check_weights
from rayingest.errors import ConfigError
from rayingest.options import Count, Flag, Fraction, Function, Length, Positive, Seed, Text, checked
from rayingest.plan.order.subset import Part, Skip, Take, split_parts
from rayingest.transforms.functions import name_of

if TYPE_CHECKING:
    import ray.data


def _check_epoch(given: Mapping[str, Any]) -> None:
    if sum(value is not None for value in given.values()) != 1:
        raise ConfigError("epoch takes either samples=... or passes=...: give one of them")


@dataclass(frozen=True, repr=False)
class Dataset(FiniteData[OneSource]):
    """Data from one source, and what is done with them. `ri.read_...` and `ri.from_...` make one.

    Each verb returns a new `Dataset`; nothing is read before `loader` or `to_ray`.
    """

    @checked()
    def where(self, expression: Text) -> Dataset:
        """Keep the samples for which an expression of their fields is true.

            data.where("width >= 256 and label in (3, 5)")

        It is evaluated once for all of the data, and the results are cached, as for `filter`.
        Fields that the expression does not name are not decoded.

        Args:
            expression: a small part of Python: names of fields after the stages so far, dotted
                paths (`meta.score`), constants, comparisons, `in`, `is None`, `and`, `or`, `not`,
                arithmetic, `len`, and items (`json["width"]`).

        Raises:
            ConfigError: the expression is not of this language, or a random stage comes before it.
        """
        from rayingest.transforms.expressions import Expression

        self._permit(Feature.WHERE)  # before the statistic, which has errors of its own
        parsed = Expression(expression)
        return self._choose(Feature.WHERE, f"where({parsed.text})", parsed, parsed.names)

    @checked()
    def filter(self, fn: Function) -> Dataset:
        """Keep the samples for which `fn(sample)` is True.

        `fn` runs once for every sample, when a loader is first made. The results are cached beside
        the index, and made again if the data, `fn`, or the stages before it change. `__index__`
        keeps counting in all of the data. A sample that cannot be decoded is an error, whatever
        `on_error` says.

        Args:
            fn: a function of a sample, a dict of fields after the stages so far, that returns True
                or False. It must not draw random numbers, nor may a stage before it.
        """
        self._permit(Feature.FILTER)
        return self._choose(Feature.FILTER, f"filter({name_of(fn)})", fn)

    @checked()
    def length(self, of: Length) -> Dataset:
        """Define how long a sample is, for `batch(bucketed=True)`, `batch(max_tokens=...)`, `pack`.

        Lengths are found once for all of the data, and cached, as the results of `filter` are.

        Args:
            of: a field, which is as long as `len` says or is the length itself, a whole number; or
                a function of a sample, as it is after the stages so far, that returns a whole
                number.
        """
        self._permit(Feature.LENGTH)
        stages = self._description.stages
        if isinstance(of, str):
            lengths = SampleStatistic(f"length({of})", LengthOf(of), stages, (of,), result_type=int)
        else:
            lengths = SampleStatistic(f"length({name_of(of)})", of, stages, result_type=int)
        return self._with(Feature.LENGTH, lengths=lengths)

    @checked()
    def pack(self, length: Positive, field: Fields = "tokens", cut: Flag = True) -> Dataset:
        """Pack samples into rows of `length` values; `batch(16)` is then 16 packed rows per step.

        A batch has the packed fields ([rows, length]), `position_ids` and `segment_ids` (int32,
        [rows, length]; a segment id of 0 marks what no sample fills), and `cu_seqlens` (int32):
        where each segment begins in the rows laid one behind the other, and where the last one
        ends. `__index__` has the sample of each segment, -1 where none fills it. Other fields are
        left out.

        The lengths of samples, from `.length` or else of the first packed field, decide which
        sample goes into which row, window by window. `.batch(pad={"labels": ri.Pad(value=-100)})`
        sets the value that fills up rows.

        Args:
            length: values of a row.
            field: the field to pack, or a list of fields that have the same length in each sample.
            cut: True: lay samples one behind the other and cut them at every `length` (for
                pretraining). False: cut no sample, put each into the row where it fits best (for
                fine-tuning); no sample may be longer than a row.
        """
        from rayingest.plan.order.packing import Packing

        names = (field,) if isinstance(field, str) else tuple(field)
        self._permit(Feature.PACK)
        measured = self if self._description.lengths is not None else self.length(names[0])
        return measured._with(Feature.PACK, packing=Packed(Packing(length, cut), names))

    @checked(check_weights)
    def weighted(
        self, by: By | None = None, *, balance: By | None = None, samples: Positive | None = None
    ) -> Dataset:
        """Draw samples as often as their weights say, instead of once an epoch; needs `.shuffle`.

        In an epoch each sample comes as often as its share of the draws, rounded up or down by
        chance, each time with random numbers of its own. Repeats of a sample are mixed within a
        window.

        Args:
            by: the weight of each sample, 0 or more: a field or a function of the sample, after the
                stages so far, found once for all of the data and cached; or an array with one entry
                for each sample of all the data.
            balance: instead, the class of each sample, given in the same ways; all classes then
                come equally often.
            samples: number of draws in an epoch. Default: the number of samples.
        """
        self._permit(Feature.WEIGHTED)
        weighting = Weighting.of(by, balance, samples, self._description.stages)
        return self._with(Feature.WEIGHTED, weighting=weighting)

    @checked()
    def take(self, count: Positive) -> Dataset:
        """Keep the first `count` samples, in file order, of those that are left so far.

        Comes before `shuffle` and `batch`.
        """
        return self._limit(Feature.TAKE, Take(count))

    @checked()
    def skip(self, count: Count) -> Dataset:
        """Leave out the first `count` samples, in file order, of those that are left so far.

        Comes before `shuffle` and `batch`.
        """
        return self._limit(Feature.SKIP, Skip(count))

    @checked()
    def split(self, *fractions: Fraction, seed: Seed = 0) -> tuple[Dataset, ...]:
        """Split the samples into parts without a sample in common.

            train, test = data.split(0.9, 0.1)

        The seed, the file name of the shard and the sample's number in it decide the part of a
        sample. So samples keep their part when shards, or samples at the end of a shard, are added,
        and when the data are copied to another folder. Splitting a part again needs another seed:
        with the same one, all its samples fall into one part.

        Args:
            fractions: the size of each part, above 0, together at most 1; sizes are met nearly.
            seed: of the split.

        Returns:
            One `Dataset` for each fraction.
        """
        for limit in self._description.limits:
            if isinstance(limit, Part) and limit.seed == seed:
                raise ConfigError(
                    f"split: this dataset is already a part of a split with seed={seed}; give "
                    "another seed"
                )
        return tuple(self._limit(Feature.SPLIT, part) for part in split_parts(fractions, seed))

    @checked(_check_epoch)
    def epoch(self, *, samples: Positive | None = None, passes: Positive | None = None) -> Dataset:
        """Set the length of an epoch, instead of one pass through the data.

        Args:
            samples: the number of samples, rounded down to full batches. The next epoch continues
                with the samples that follow. Needs `partial="drop"`.
            passes: the number of passes through the data, each in another order and with other
                random numbers.
        """
        length = {"samples": samples, "passes": passes}
        return self._with(
            Feature.EPOCH,
            epoch_length={name: value for name, value in length.items() if value is not None},
        )

    @checked()
    def to_ray(self, *, epoch: Count = 0) -> ray.data.Dataset:
        """Return the samples as a Ray Dataset, whose tasks read, decode and map them.

        Each sample that `where`, `take` and the like leave is one row, with its ordinal in
        `__index__`; fields have the types that they have in batches, and are null where a sample
        has None. `.shuffle` and `.batch` have no effect, and Ray Data decides the order. A bad
        sample is an error.

        Args:
            epoch: the pass through the data whose random numbers are used, so that every run gives
                the same rows.
        """
        from rayingest.build.to_ray import build_ray_dataset

        return build_ray_dataset(self._description, epoch)

    def _choose(
        self, verb: Feature, name: str, fn: Any, fields: tuple[str, ...] | None = None
    ) -> Dataset:
        return self._limit(verb, SampleStatistic(name, fn, self._description.stages, fields))

    def _limit(self, verb: Feature, limit: Any) -> Dataset:
        return self._with(verb, limits=(*self._description.limits, limit))
