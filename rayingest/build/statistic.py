"""Measures: one number that a function gives of every sample, found once for all of the data and kept beside its index.

Owns what is read and decoded for it, which is no more than the function needs, the numbers' file, and what makes that
stale. What the numbers are for is the business of the subset.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.execute.stream import spans_of
from rayingest.execute.work import SourceWork, Spans
from rayingest.plan.order.manifest import Manifest
from rayingest.storage.cache_file import CacheFile
from rayingest.storage.index_cache import IndexCache
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.functions import failure, is_interrupt
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Select, Stage, compile_stages

MEASURE_VERSION = 1

_BLOCKS_A_PART = 4
_SAMPLES_AT_ONCE = 64
_LONGEST = 1 << 32


@dataclass(frozen=True)
class SampleStatistic:
    """What `fn` says of a sample as it is after the stages; `name` is what it is called in messages and states.

    `fields` are all that it needs, None for the whole sample. It `gives` True or False (bool), lengths (int) or weights
    (float).
    ConfigError where the sample would depend on chance.
    """

    name: str
    fn: Callable[[dict[str, Any]], Any]
    stages: tuple[Stage, ...] = ()
    fields: tuple[str, ...] | None = None
    gives: type = bool

    def __post_init__(self) -> None:
        program = compile_stages(self.needed)
        for step in (*program.head, *program.tail):
            function = getattr(step, "function", None)
            if function is not None and function.rng is not None:
                raise ConfigError(
                    f"{self.name} comes after {function.label}, which draws random numbers: what it says would differ "
                    "from epoch to epoch; put it before"
                )

    @cached_property
    def needed(self) -> tuple[Stage, ...]:
        """The stages, without what the fields do not need."""
        return self.stages if self.fields is None else _narrowed(self.stages, self.fields)

    @property
    def mark(self) -> str:
        """8 hex digits of the code."""
        stages = ((type(stage).__name__, vars(stage)) for stage in self.needed)
        return code_mark(
            [MEASURE_VERSION, *stages, self.fn, *(["weights"] if self.gives is float else [])]
        )

    def of(self, work: SourceWork, spans: Spans, ordinals: np.ndarray) -> np.ndarray:
        """What it says of all samples in these blocks, whose first samples have these ordinals: bool[n], int64[n] or
        float64[n]. Raises DataError, ConfigError.
        """
        found: list[float] = []
        for table, first in zip(work.read(spans), ordinals.tolist(), strict=True):
            block = work.open(table)
            for begin in range(0, table.num_rows, _SAMPLES_AT_ONCE):
                row = np.arange(begin, min(table.num_rows, begin + _SAMPLES_AT_ONCE))
                samples = work.pipeline.run([block], np.zeros_like(row), row, first + row, 0)
                for sample, i in zip(samples, row.tolist(), strict=True):
                    found.append(self._said(sample, {**block.rows.where(i), "sample": first + i}))
        return np.array(found, self.gives)

    def _said(self, sample: dict[str, Any], where: dict[str, Any]) -> float:
        try:
            said = self.fn(sample)
        except BaseException as error:  # whatever it is: many a kind would end a worker
            if isinstance(error, ConfigError) or is_interrupt(error):
                raise
            raise failure(self.name, error, self.fn, **where) from error
        is_bool, is_whole = isinstance(said, (bool, np.bool_)), isinstance(said, (int, np.integer))
        if is_bool and self.gives is bool:
            return bool(said)
        if self.gives is int and is_whole and not is_bool and 0 <= said < _LONGEST:
            return int(said)
        if (
            self.gives is float
            and (is_whole or isinstance(said, (float, np.floating)))
            and 0 <= said < math.inf
        ):
            return float(said)
        must = {
            bool: "say True or False",
            int: f"give a whole number from 0 to {_LONGEST - 1}",
            float: "give a number, 0 or more",
        }[self.gives]
        raise DataError(f"{self.name} gave {said!r}; it must {must}", **where)


@dataclass(frozen=True)
class LengthOf:
    """How long a field is: what `len` says, or the number that it is."""

    field: str

    def __call__(self, sample: dict[str, Any]) -> Any:
        value = sample[self.field]
        return len(value) if hasattr(value, "__len__") else value


@dataclass(frozen=True)
class StatisticScan:
    """A measure of a data set as a `Scan`: bool or float64[num_samples], or of the least unsigned type, by ordinal.

    A part is a few blocks.
    """

    measure: SampleStatistic
    manifest: Manifest
    cache: IndexCache
    work: SourceWork

    @property
    def name(self) -> str:
        return f"answer of {self.measure.name}"

    @property
    def key(self) -> str:
        return f"{self.cache.key}-{self.measure.mark}"

    @property
    def is_light(self) -> bool:
        return False

    def load(self) -> np.ndarray | None:
        return self._file.load(self._value)

    def save(self, value: np.ndarray) -> None:
        self._file.save(
            self._header, {"value": value.astype(np.uint8) if self.measure.gives is bool else value}
        )

    def _value(self, header: dict[str, Any], columns: dict[str, Any]) -> np.ndarray | None:
        if header != self._header:
            return None
        value: np.ndarray = columns["value"]
        return value == 1 if self.measure.gives is bool else value

    def parts(self) -> list[Callable[[], np.ndarray]]:
        pipeline = Pipeline(self.measure.needed, 0)
        work = replace(self.work, pipeline=pipeline, skip=False)
        blocks = range(self.manifest.num_blocks)
        chosen = [blocks[i : i + _BLOCKS_A_PART] for i in range(0, len(blocks), _BLOCKS_A_PART)]
        first = self.manifest.first_ordinal
        return [
            partial(self.measure.of, work, spans_of(self.manifest, some), first[list(some)])
            for some in chosen
        ]

    def join(self, results: Sequence[np.ndarray]) -> np.ndarray:
        value = np.concatenate(results)
        return (
            value.astype(np.min_scalar_type(int(value.max())))
            if self.measure.gives is int
            else value
        )

    @property
    def _file(self) -> CacheFile:
        location = f"{self.cache.location.removesuffix('.arrow')}-{self.measure.mark}.arrow"
        return CacheFile(
            self.name, location, self.cache.storage, named_by_user=self.cache.index is not None
        )

    @property
    def _header(self) -> dict[str, Any]:
        marks = hashlib.blake2b("\0".join(self.manifest.marks).encode(), digest_size=16).hexdigest()
        return {
            "version": MEASURE_VERSION,
            "data": self.manifest.fingerprint,
            "marks": marks,
            "code": self.measure.mark,
        }


def _narrowed(stages: Sequence[Stage], fields: Sequence[str]) -> tuple[Stage, ...]:
    """The stages that make these fields, and nothing else as far as that can be told; maps need the whole sample."""
    kept: list[Stage] = [Select({name: name for name in fields})]
    wanted = set(fields)
    for place in range(len(stages) - 1, -1, -1):
        stage = stages[place]
        if isinstance(stage, Select):
            narrow = {new: old for new, old in stage.fields.items() if new in wanted}
            if narrow:
                kept.insert(0, Select(narrow))
            wanted = set(narrow.values())
        elif isinstance(stage, Decode):
            functions = {name: fn for name, fn in stage.functions.items() if name in wanted}
            if functions:
                kept.insert(0, Decode(functions))
        else:
            return (*stages[: place + 1], *kept)
    first = (
        Select({name: name for name in sorted(wanted)})
        if wanted and not isinstance(kept[0], Select)
        else None
    )
    return (first, *kept) if first is not None else tuple(kept)
