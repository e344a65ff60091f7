"""Describe the work on each sample, carry it to the workers, and run it there.

Owns the meaning of a sequence of stages: which raw fields are read, when and by which decoder a
field is decoded, and which function gets which random numbers. A sample's result depends only on
the sample, the description, the seed and the epoch, neither on the rows it is decoded with nor on
the process. The schema is learned from the first samples.

Reads no blocks, orders no samples and replaces no bad ones. Errors name shard, offset and sample,
so that the caller can.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from rayingest.errors import ConfigError, DataError
from rayingest.plan.order.randomness import fold, generator
from rayingest.plan.order.step_samples import Layout
from rayingest.plan.protocols import Columns
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.collate import CollateFunction, PackedFields, collate, collate_with
from rayingest.transforms.functions import Function, collate_function, is_interrupt, user_line
from rayingest.transforms.global_random import Draws, global_seed
from rayingest.transforms.images.jpeg import PILLOW
from rayingest.transforms.open_block import OpenBlock, PlanFields, sample_views, whole_columns
from rayingest.transforms.padding import Pad
from rayingest.transforms.raw_block import RawBlock
from rayingest.transforms.run_stages import Samples, StageRun
from rayingest.transforms.schema import FieldType, Schema, infer_schema, with_padding
from rayingest.transforms.stages import (
    CompiledStages,
    Decode,
    Map,
    MapBatches,
    Select,
    Stage,
    compile_stages,
    plan_fields,
)

COLLATE = 1 << 32
"""The number of the collate function among the keys of random numbers; stages have smaller ones."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Stages, with all that is needed to run them anywhere.

    Immutable and picklable (with cloudpickle for local functions).

    - `source`: the place of the dataset among those that are read together.
    - `image_backend`: what decodes images, one of `images.jpeg.BACKENDS`.
    - `collate`: the user's function from a list of samples to a dict of columns, or None.
    - `schema`: the result of `learn_schema`. Samples are checked against it unless there is a
      `collate`.
    - `collate_mark`: the mark of the code of `collate`, taken before it ran; "": not taken yet.
    - `padding`: how fields are padded; `packed`: the fields that are packed, or None.

    Raises ConfigError for stages that cannot work.
    """

    stages: tuple[Stage, ...]
    seed: int
    collate: CollateFunction | None = None
    source: int = 0
    schema: Schema | None = None
    image_backend: str = PILLOW
    padding: Mapping[str, Pad] = field(default_factory=dict)
    packed: PackedFields | None = None
    collate_mark: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        for stage in self.stages:
            if not isinstance(stage, (Select, Decode, Map, MapBatches)):
                raise ConfigError(f"a stage is a Select, Decode, Map or MapBatches, not {stage!r}")
        if self.collate is not None and not callable(self.collate):
            raise ConfigError(
                f"collate={self.collate!r} cannot be called; give a function of a list of samples"
            )
        if self.collate is not None:
            collate_function(self.collate)

    def __getstate__(self) -> dict[str, Any]:
        # Fields only: instances that were set up stay in their process.
        return {each.name: self.__dict__[each.name] for each in fields(self)}

    @property
    def needs_whole_steps(self) -> bool:
        """Whether a step's samples can only be put together all at once."""
        return self.collate is not None or self.packed is not None

    @cached_property
    def columns(self) -> tuple[str, ...] | None:
        """The raw fields to read, if the first stage is a `Select`; None for all of them."""
        if not self.stages or not isinstance(self.stages[0], Select):
            return None
        return tuple(dict.fromkeys(self.stages[0].fields.values()))

    @cached_property
    def code_mark(self) -> str:
        """8 hex digits of the stages' code, equal in every process while the code is the same."""
        collate = self.collate_mark or code_mark(self.collate)
        return code_mark([*(stage.mark for stage in self.stages), collate])

    @cached_property
    def spec_bytes(self) -> int:
        """Bytes of a decoded sample, of the fields whose decoder has a known shape; 0 if none
        has.
        """
        return self._compiled.known_bytes

    def learn_schema(
        self,
        tables: Sequence[pa.Table],
        table_of: np.ndarray,
        row_of: np.ndarray,
        ordinals: np.ndarray,
    ) -> dict[str, FieldType]:
        """Return the schema that these samples suggest, bad ones left out.

        Arguments as for `run_samples`. If no sample is good, raises the first one's error.
        ConfigError where samples do not fit together.
        """
        bad: dict[int, DataError] = {}
        samples = self.run_samples(tables, table_of, row_of, ordinals, 0, bad)
        if not samples and bad:
            error = next(iter(bad.values()))
            raise ConfigError(str(error)) if isinstance(error.__cause__, ConfigError) else error
        for place, sample in zip(
            np.delete(np.arange(len(ordinals)), list(bad)).tolist(), samples, strict=True
        ):
            try:
                infer_schema([sample], samples.fixed, self.padding)
            except DataError as error:
                block, row = RawBlock(tables[table_of[place]]), int(row_of[place])
                where, reason = block.where(row), error.reason + block.describe_split(row)
                raise DataError(reason, **where, sample=int(ordinals[place])) from error
        schema = with_padding(infer_schema(samples, samples.fixed, self.padding), self.padding)
        if self.packed is not None:
            self.packed.check(schema)
        return schema

    def run_samples(
        self,
        tables: Sequence[pa.Table],
        table_of: np.ndarray,
        row_of: np.ndarray,
        ordinals: np.ndarray,
        epoch: int | np.ndarray,
        bad: dict[int, DataError] | None = None,
    ) -> Samples:
        """Do `run` on raw tables, opened for this call alone."""
        return self.run(
            [self.open(table) for table in tables], table_of, row_of, ordinals, epoch, bad
        )

    def run(
        self,
        blocks: Sequence[OpenBlock],
        table_of: np.ndarray,
        row_of: np.ndarray,
        ordinals: np.ndarray,
        epoch: int | np.ndarray,
        bad: dict[int, DataError] | None = None,
    ) -> Samples:
        """Return n samples as dicts, decoded and mapped, not collated.

        Sample i is row `row_of[i]` of `blocks[table_of[i]]`; `ordinals` (int64[n]) are the places
        in the manifest; `epoch` is one for all, or one for each. Raises DataError, which names the
        sample, for what cannot be decoded or does not fit the schema, and for any exception in a
        user's function. If `bad` is given, samples at fault are left out, and their errors put
        there by place (0 to n-1). Errors that may not be a sample's own fault are raised all the
        same.
        """
        schema = None if self.collate is not None else self.schema
        how = self._compiled, self._plan, self._target, schema, self.image_backend, self._draws
        run = StageRun(*how, blocks, table_of, row_of, ordinals)
        return run.samples(self.seed, epoch, self.source, bad)

    def open(self, table: pa.Table) -> OpenBlock:
        """Open a raw block, from which many runs can take samples."""
        untouched = not self._compiled.tail and self.collate is None
        return OpenBlock(table, self._plan, self.schema if untouched else None)

    def whole_columns(
        self, blocks: Sequence[OpenBlock], block_of: np.ndarray, row_of: np.ndarray
    ) -> Columns | None:
        """Return `finish(run(...))` if no stage does anything to any of the samples; else None."""
        return None if self.schema is None else whole_columns(blocks, block_of, row_of, self.schema)

    def sample_views(
        self, blocks: Sequence[OpenBlock], block_of: np.ndarray, row_of: np.ndarray
    ) -> list[dict[str, Any]] | None:
        """Return `run(...)` as views of the blocks if no stage does anything; else None."""
        return None if self.schema is None else sample_views(blocks, block_of, row_of, self.schema)

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether no column is padded: a sample's rows do not depend on the samples beside it."""
        if self.schema is None or self.packed is not None:
            return False
        return not any(field.padded for field in self.schema.values())

    def finish(
        self,
        samples: Sequence[dict[str, Any]],
        layout: Layout | None = None,
        first: tuple[int, int] = (0, 0),
    ) -> Columns:
        """Put samples of one or several runs together; all of a step's if it `needs_whole_steps`.

        Packed rows need their `layout`. `first` are the pass and the ordinal of the first sample,
        which key the random numbers of the user's collate. Raises ConfigError for samples that do
        not fit together.
        """
        if self.packed is not None:
            assert layout is not None, "packed rows have a layout"
            return self.packed.pack(samples, layout)
        if self.collate is not None:
            at = (self.seed, first[0], self.source, first[1], COLLATE)
            key = fold("global", *at)
            return collate_with(self._collate_function, list(samples), key, lambda: generator(*at))
        assert self.schema is not None, "learn the schema first"
        in_place = samples.in_place if isinstance(samples, Samples) else ()
        return collate(samples, self.schema, in_place=in_place)

    @cached_property
    def _compiled(self) -> CompiledStages:
        return compile_stages(self.stages)

    @cached_property
    def _plan(self) -> PlanFields:
        return lru_cache(maxsize=256)(partial(plan_fields, self._compiled.head))

    @cached_property
    def _instances(self) -> tuple[threading.Lock, dict[int, Any]]:
        return threading.Lock(), {}

    @cached_property
    def _collate_function(self) -> Function:
        return collate_function(self.collate)

    @cached_property
    def _draws(self) -> Draws:
        return Draws()

    def _target(self, function: Function) -> Callable[..., Any]:
        """Return the function itself, or this worker's one instance of a class."""
        if not function.set_up:
            return function.fn
        lock, instances = self._instances
        with lock:
            if function.number not in instances:
                try:
                    with global_seed(fold("global", self.seed, function.number)):
                        instances[function.number] = function.fn()
                except BaseException as error:
                    if is_interrupt(error):
                        raise
                    line = user_line(error, function.fn)
                    raise ConfigError(
                        f"{function.label}: setting it up failed: {error!r}{line}"
                    ) from error
            return instances[function.number]
