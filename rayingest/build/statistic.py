"""Compute one number for each sample with a function, once for all data, and cache the numbers.

Owns which fields are read and decoded (only those that the function needs), the cache file beside
the index, and when that file is out of date; which values `weighted` accepts, and how numbers or
labels become weights. How samples are chosen, sorted or drawn by their numbers is the business of
`plan.order`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.execute.stream import spans_of
from rayingest.execute.work import SourceWork, Spans
from rayingest.formats.nested import split_path, top_of
from rayingest.options import option_type
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.randomness import fold
from rayingest.plan.order.subset import Subset
from rayingest.storage.scan import CacheFile, IndexCache
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.functions import Function, failure, is_interrupt, name_of
from rayingest.transforms.global_random import Draws
from rayingest.transforms.open_block import OpenBlock
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.schema import as_array
from rayingest.transforms.stages import Decode, Select, Stage, compile_stages

if TYPE_CHECKING:
    from rayingest.plan.order.weighted import Weights

STATISTIC_VERSION = 1

_BLOCKS_PER_PART = 4
_SAMPLES_PER_RUN = 64
_ITEMS_PER_PART = 256
_LENGTH_END = 1 << 32


@dataclass(frozen=True)
class SampleStatistic:
    """One number for each sample: the result of `fn` for the sample after the stages.

    `name` is its name in messages and states. `fields` are the fields that `fn` needs, None for the
    whole sample. `result_type`: bool for True or False, int for lengths, float for weights.

    Raises ConfigError if a stage draws random numbers: the result would differ between epochs. The
    stage that gets the items of a PyTorch dataset may draw: each item is then made for two epochs,
    and the result must be the same.
    """

    name: str
    fn: Callable[[dict[str, Any]], Any]
    stages: tuple[Stage, ...] = ()
    fields: tuple[str, ...] | None = None
    result_type: type = bool

    def __post_init__(self) -> None:
        for function in self._functions():
            if function.rng is not None and not _makes_items(function):
                raise ConfigError(
                    f"{self.name} comes after {function.label}, which draws random numbers: "
                    f"its result would change from epoch to epoch; put {self.name} first"
                )

    @cached_property
    def needed_stages(self) -> tuple[Stage, ...]:
        """The stages without those that the fields do not need."""
        return self.stages if self.fields is None else _narrow_stages(self.stages, self.fields)

    def _functions(self) -> list[Function]:
        program = compile_stages(self.needed_stages)
        steps = (*program.head, *program.tail)
        return [step.function for step in steps if not isinstance(step, Select)]

    @property
    def mark(self) -> str:
        """8 hex digits of a hash of the code."""
        stages = (stage.mark for stage in self.needed_stages)
        return code_mark(
            [
                STATISTIC_VERSION,
                *stages,
                self.fn,
                *(["weights"] if self.result_type is float else []),
            ]
        )

    def compute(
        self, work: SourceWork, spans: Spans, ordinals: np.ndarray, rows: range | None = None
    ) -> np.ndarray:
        """Return the numbers of all samples in these blocks: bool[n], int64[n] or float64[n].

        `ordinals` are those of the first sample of each block; `rows` are the rows of each block to
        take, None for all. Raises DataError, ConfigError.
        """
        numbers: list[float] = []
        draws = Draws()
        again = any(map(_makes_items, self._functions()))
        for table, first in zip(work.read(spans), ordinals.tolist(), strict=True):
            block = work.open(table)
            some = range(table.num_rows) if rows is None else rows
            for begin in range(some.start, some.stop, _SAMPLES_PER_RUN):
                row = np.arange(begin, min(some.stop, begin + _SAMPLES_PER_RUN))
                found = self._of_rows(work, block, row, first, 0, draws)
                if again:
                    other = self._of_rows(work, block, row, first, 1, draws)
                    self._check_same(found, other, first + row)
                numbers += found
        return np.array(numbers, self.result_type)

    def _of_rows(
        self,
        work: SourceWork,
        block: OpenBlock,
        row: np.ndarray,
        first: int,
        epoch: int,
        draws: Draws,
    ) -> list[float]:
        samples = work.pipeline.run([block], np.zeros_like(row), row, first + row, epoch)

        def run() -> list[float]:
            numbers = []
            with draws.watch(None):
                for sample, i in zip(samples, row.tolist(), strict=True):
                    if draws.watches:
                        draws.seed(None, fold("global", first + i))
                    where = {**block.rows.where(i), "sample": first + i}
                    numbers.append(self._number(sample, where))
            return numbers

        return draws.run(run)

    def _check_same(self, one: list[float], other: list[float], ordinals: np.ndarray) -> None:
        """Raise DataError if an item of another epoch gave another number."""
        for a, b, ordinal in zip(one, other, ordinals.tolist(), strict=True):
            if a != b:
                raise DataError(
                    f"{self.name} depends on random numbers of the item: it gave {a!r} in one "
                    f"epoch and {b!r} in another; name a field that is the same in every epoch",
                    sample=ordinal,
                )

    def _number(self, sample: dict[str, Any], where: dict[str, Any]) -> float:
        try:
            value = self.fn(sample)
        except BaseException as error:  # SystemExit, for example, would end the worker
            if isinstance(error, ConfigError) or is_interrupt(error):
                raise
            raise failure(self.name, error, self.fn, **where) from error
        is_bool, is_whole = (
            isinstance(value, (bool, np.bool_)),
            isinstance(value, (int, np.integer)),
        )
        if is_bool and self.result_type is bool:
            return bool(value)
        if self.result_type is int and is_whole and not is_bool and 0 <= value < _LENGTH_END:
            return int(value)
        if (
            self.result_type is float
            and (is_whole or isinstance(value, (float, np.floating)))
            and 0 <= value < math.inf
        ):
            return float(value)
        must = {
            bool: "say True or False",
            int: f"give a whole number from 0 to {_LENGTH_END - 1}",
            float: "give a number, 0 or more",
        }[self.result_type]
        raise DataError(f"{self.name} gave {value!r}; it must {must}", **where)


def _makes_items(function: Function) -> bool:
    return getattr(function.fn, "makes_items", False)


@dataclass(frozen=True)
class LengthOf:
    """The length of a field: its `len`, or the field itself if it is a number."""

    field: str

    def __call__(self, sample: dict[str, Any]) -> Any:
        value = sample[self.field]
        return len(value) if hasattr(value, "__len__") else value


@dataclass(frozen=True)
class NumberOf:
    """The number in a field."""

    field: str

    def __call__(self, sample: dict[str, Any]) -> Any:
        return sample[self.field]


@dataclass(frozen=True)
class LabelOf:
    """The class of a sample as a number below 2**32: the label if it is one, else a hash of it."""

    of: str | Callable[[dict[str, Any]], Any]

    def __call__(self, sample: dict[str, Any]) -> int:
        label = sample[self.of] if isinstance(self.of, str) else self.of(sample)
        if isinstance(label, (int, np.integer)) and 0 <= label < 1 << 32:
            return int(label)
        return int.from_bytes(hashlib.blake2b(repr(label).encode(), digest_size=4).digest())


@dataclass(frozen=True)
class StatisticScan:
    """A `Scan` that computes a statistic of all samples, a few blocks in each part.

    The result is by ordinal: bool[num_samples], float64[num_samples], or lengths of the smallest
    unsigned type that holds them. `content` marks data that no file holds: their results are
    computed for each loader, because nothing tells whether the data have changed.
    """

    statistic: SampleStatistic
    manifest: Manifest
    cache: IndexCache
    work: SourceWork
    content: str = ""

    @property
    def name(self) -> str:
        return f"values of {self.statistic.name}"

    @property
    def key(self) -> str:
        return f"{self.cache.key}-{self.statistic.mark}{self.content}"

    @property
    def is_light(self) -> bool:
        return False

    def load(self) -> np.ndarray | None:
        return None if self.content else self._file.load(self._value)

    def save(self, value: np.ndarray) -> None:
        if self.content:
            return
        self._file.save(
            self._header,
            {"value": value.astype(np.uint8) if self.statistic.result_type is bool else value},
        )

    def _value(self, header: dict[str, Any], columns: dict[str, Any]) -> np.ndarray | None:
        if header != self._header:
            return None
        value: np.ndarray = columns["value"]
        return value == 1 if self.statistic.result_type is bool else value

    def parts(self) -> list[Callable[[], np.ndarray]]:
        pipeline = Pipeline(self.statistic.needed_stages, 0)
        work = replace(self.work, pipeline=pipeline, skip=False)
        blocks = range(self.manifest.num_blocks)
        if self.content:  # one block of all items
            samples, spans = self.manifest.num_samples, spans_of(self.manifest, blocks)
            return [
                partial(self.statistic.compute, work, spans, np.zeros(1, np.int64), rows)
                for begin in range(0, samples, _ITEMS_PER_PART)
                for rows in [range(begin, min(begin + _ITEMS_PER_PART, samples))]
            ]
        parts = [blocks[i : i + _BLOCKS_PER_PART] for i in range(0, len(blocks), _BLOCKS_PER_PART)]
        first = self.manifest.first_ordinal
        return [
            partial(self.statistic.compute, work, spans_of(self.manifest, part), first[list(part)])
            for part in parts
        ]

    def join(self, results: Sequence[np.ndarray]) -> np.ndarray:
        value = np.concatenate(results)
        return (
            value.astype(np.min_scalar_type(int(value.max())))
            if self.statistic.result_type is int
            else value
        )

    @property
    def _file(self) -> CacheFile:
        location = f"{self.cache.location.removesuffix('.arrow')}-{self.statistic.mark}.arrow"
        return CacheFile(
            self.name, location, self.cache.storage, named_by_user=self.cache.index is not None
        )

    @property
    def _header(self) -> dict[str, Any]:
        marks = hashlib.blake2b("\0".join(self.manifest.marks).encode(), digest_size=16).hexdigest()
        return {
            "version": STATISTIC_VERSION,
            "data": self.manifest.fingerprint,
            "marks": marks,
            "code": self.statistic.mark,
        }


def _by(value: Any) -> Any:
    """Return a field's name or a function as it is, any other value as an array."""
    if callable(value) or (isinstance(value, str) and value.strip()):
        return value
    if isinstance(value, (str, bytes)):
        raise TypeError
    array = as_array(value)  # TypeError for a masked value
    if array.ndim != 1 or array.dtype.kind not in "biufUS":
        raise TypeError
    return array


By = Annotated[
    str | Callable[..., Any] | Sequence[float],
    option_type(
        "a field's name, a function of a sample, or an array with a number for each sample", _by
    ),
]


def check_weights(options: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the options are either weights or classes, not both."""
    if (options.get("by") is None) == (options.get("balance") is None):
        raise ConfigError(
            "samples are drawn by weights, as in weighted('quality'), or by balance=...: "
            "give one of them"
        )


@dataclass(frozen=True, eq=False)
class Weighting:
    """How samples are weighted: `by` gives a weight for each sample, or a class if `balanced`.

    Balanced classes come equally often. `draws`: the number of draws in a pass over the data, by
    default the number of samples.
    """

    by: SampleStatistic | np.ndarray
    balanced: bool
    draws: int | None

    @classmethod
    def of(cls, by: Any, balance: Any, draws: int | None, stages: tuple[Stage, ...]) -> Weighting:
        """Make one of `by` or `balance`, for samples as they are after these stages."""
        values, balanced = (by, False) if balance is None else (balance, True)
        if isinstance(values, np.ndarray):
            return cls(values, balanced, draws)
        is_field = isinstance(values, str)
        name = f"weighted({values if is_field else name_of(values)})"
        fields = (values,) if is_field else None
        if balanced:
            statistic = SampleStatistic(name, LabelOf(values), stages, fields, int)
        else:
            fn = NumberOf(values) if is_field else values
            statistic = SampleStatistic(name, fn, stages, fields, float)
        return cls(statistic, balanced, draws)

    def weights(self, values: np.ndarray, subset: Subset) -> Weights:
        """Return the weights of all samples from the numbers or classes of all samples.

        Classes are counted in the subset only. Raises ConfigError.
        """
        from rayingest.plan.order.weighted import Weights

        if len(values) != subset.manifest.num_samples:
            samples = f"{subset.manifest.num_samples:,} samples"
            raise ConfigError(
                f"weighted: the array has {len(values):,} entries; "
                f"it must have one for each of {samples}"
            )
        if self.balanced:
            _, label = np.unique(values, return_inverse=True)
            counts = sum(
                np.bincount(label[ordinals], minlength=label.max() + 1)
                for ordinals in subset.ordinals()
            )
            return Weights(1 / np.maximum(1, counts)[label], label)
        weights = values.astype(np.float64)
        wrong = np.flatnonzero(~((weights >= 0) & (weights < math.inf)))
        if len(wrong):
            problem = f"the weight of sample {wrong[0]} is {weights[wrong[0]]}"
            raise ConfigError(f"weighted: {problem}; a weight must be a finite number of 0 or more")
        return Weights(weights)


def _source_of(name: str, fields: Mapping[str, str]) -> str:
    """Return what a select takes a field from, or a dotted path into one; "" if it drops it."""
    if name in fields:
        return fields[name]
    path = split_path(name, fields)
    return "" if path is None else ".".join((fields[path[0]], *path[1]))


def _narrow_stages(stages: Sequence[Stage], fields: Sequence[str]) -> tuple[Stage, ...]:
    """Return the stages that these fields need.

    A map needs the whole sample, so all stages before the last map stay as they are.
    """
    needed: list[Stage] = [Select({name: name for name in fields})]
    wanted = set(fields)
    for place in range(len(stages) - 1, -1, -1):
        stage = stages[place]
        if isinstance(stage, Select):
            selected = {name: _source_of(name, stage.fields) for name in sorted(wanted)}
            selected = {new: old for new, old in selected.items() if old}
            if selected:
                needed.insert(0, Select(selected))
            wanted = set(selected.values())
        elif isinstance(stage, Decode):
            # A path into a decoded field needs the field itself.
            wanted = {top_of(name, stage.functions) for name in wanted}
            functions = {name: fn for name, fn in stage.functions.items() if name in wanted}
            if functions:
                needed.insert(0, Decode(functions))
        else:
            return (*stages[: place + 1], *needed)
    first = (
        Select({name: name for name in sorted(wanted)})
        if wanted and not isinstance(needed[0], Select)
        else None
    )
    return (first, *needed) if first is not None else tuple(needed)
