"""The work done on each sample: a description that travels to the workers, and its execution there.

Owns the meaning of a sequence of stages: what is read, when a field is decoded and by what, which function gets which
random numbers, and that a sample's result depends on nothing but the sample, the description, the seed and the epoch:
neither on the rows it is decoded with nor on where. What its fields are is learnt from the first samples. Reading
blocks, ordering samples and filling the places of bad ones are not its business; errors name shard, offset and sample
for those whose business it is.
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
from rayingest.plan.order.layout import Layout
from rayingest.plan.protocols import Columns
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.collate import collate
from rayingest.transforms.columnar import sample_views, whole_columns
from rayingest.transforms.execution import Execution, Samples
from rayingest.transforms.functions import Function, failure, is_interrupt, name_of, user_line
from rayingest.transforms.images.backend import PILLOW
from rayingest.transforms.open_block import OpenBlock, Plan
from rayingest.transforms.packed_fields import PackedFields
from rayingest.transforms.padding import Pad
from rayingest.transforms.program import Program, compile_stages, plan_fields
from rayingest.transforms.rows import Rows
from rayingest.transforms.schema import FieldType, Schema, infer, with_padding
from rayingest.transforms.stages import Decode, Map, MapBatches, Select, Stage
from rayingest.transforms.tensors import as_array

__all__ = ["Decode", "Map", "MapBatches", "Pipeline", "Samples", "Select", "Stage"]

CustomCollate = Callable[[list[dict[str, Any]]], Any]


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Stages and what they need to be run anywhere: immutable, picklable (with cloudpickle for local functions).

    `source` is the place of the data set among those read together; `path` is how images are decoded, one of
    `image_backend.PATHS`. `collate`, where given, gets the list of sample dicts and returns a dict of arrays or lists
    with the batch as first axis. `schema` is what `learn` gave; samples are held to it, unless there is a `collate`;
    its fields are padded as of `padding`, or `packed`. Raises ConfigError for stages that cannot work.
    """

    stages: tuple[Stage, ...]
    seed: int
    collate: CustomCollate | None = None
    source: int = 0
    schema: Schema | None = None
    path: str = PILLOW
    padding: Mapping[str, Pad] = field(default_factory=dict)
    packed: PackedFields | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        for stage in self.stages:
            if not isinstance(stage, (Select, Decode, Map, MapBatches)):
                raise ConfigError(f"a stage is a Select, Decode, Map or MapBatches, not {stage!r}")
        if self.collate is not None and not callable(self.collate):
            raise ConfigError(
                f"collate={self.collate!r} cannot be called; give a function of a list of samples"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {
            each.name: self.__dict__[each.name] for each in fields(self)
        }  # set-up instances stay in their process

    @property
    def needs_whole_steps(self) -> bool:
        """Whether a step's samples can only be put together all at once."""
        return self.collate is not None or self.packed is not None

    @cached_property
    def columns(self) -> tuple[str, ...] | None:
        """The raw fields to read, where a `Select` at the start says so; None for all of them."""
        if not self.stages or not isinstance(self.stages[0], Select):
            return None
        return tuple(dict.fromkeys(self.stages[0].fields.values()))

    @cached_property
    def code_mark(self) -> str:
        """8 hex digits of the stages' code, the same in every process while nothing changes."""
        parts = [(type(stage).__name__, vars(stage)) for stage in self.stages]
        return code_mark([*parts, self.collate])

    @cached_property
    def spec_bytes(self) -> int:
        """Bytes of a decoded sample as far as the shapes of its decoders' results are known; 0 if none is."""
        return self._program.known_bytes

    def learn(
        self,
        tables: Sequence[pa.Table],
        table_of: np.ndarray,
        row_of: np.ndarray,
        ordinals: np.ndarray,
    ) -> dict[str, FieldType]:
        """The schema that these samples suggest, bad ones left out; arguments as of `run_samples`.

        Raises what is wrong with the first where none is good, ConfigError where they do not fit together.
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
                infer([sample], samples.fixed, self.padding)
            except DataError as error:
                where = Rows(tables[table_of[place]]).where(int(row_of[place]))
                raise DataError(error.reason, **where, sample=int(ordinals[place])) from error
        schema = with_padding(infer(samples, samples.fixed, self.padding), self.padding)
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
        """As `run`, of blocks that are opened for it alone."""
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
        """n samples as dicts, decoded and mapped, not collated; sample i is row `row_of[i]` of `blocks[table_of[i]]`.

        `ordinals` (n) are their places in the manifest; the `epoch` is that of all, or of each. Raises DataError for
        what cannot be decoded or does not fit the schema and for any exception in a user's function, naming the sample.
        Where `bad` is given, samples that are at fault are left out, and their errors put there by their place (0 to
        n-1). What need not be a sample's own fault is raised all the same.
        """
        schema = None if self.collate is not None else self.schema
        how = self._program, self._plan, self._target, schema, self.path
        execution = Execution(*how, blocks, table_of, row_of, ordinals)
        return execution.samples(self.seed, epoch, self.source, bad)

    def open(self, table: pa.Table) -> OpenBlock:
        """A raw block, to take samples from many times."""
        untouched = not self._program.tail and self.collate is None
        return OpenBlock(table, self._plan, self.schema if untouched else None)

    def whole(
        self, blocks: Sequence[OpenBlock], block_of: np.ndarray, row_of: np.ndarray
    ) -> Columns | None:
        """What `finish` would make of `run_samples`, where nothing is done to any of the samples; else None."""
        return None if self.schema is None else whole_columns(blocks, block_of, row_of, self.schema)

    @property
    def fixed_shapes(self) -> bool:
        """Whether a sample's part of every column is the same, whatever samples are beside it: nothing is padded."""
        if self.schema is None or self.packed is not None:
            return False
        return not any(field.padded for field in self.schema.values())

    def views(
        self, blocks: Sequence[OpenBlock], block_of: np.ndarray, row_of: np.ndarray
    ) -> list[dict[str, Any]] | None:
        """What `run_samples` would give, where nothing is done to any sample: views of the blocks. Else None."""
        return None if self.schema is None else sample_views(blocks, block_of, row_of, self.schema)

    def finish(self, samples: Sequence[dict[str, Any]], layout: Layout | None = None) -> Columns:
        """Put samples of one or of several `run_samples` together, all of a step's where it needs them whole.

        With a `layout` where they are packed. Raises ConfigError for what does not fit together.
        """
        if self.packed is not None:
            assert layout is not None, "packed rows have a layout"
            return self.packed.pack(samples, layout)
        if self.collate is not None:
            return self._custom(list(samples))
        assert self.schema is not None, "learn the schema first"
        return collate(
            samples, self.schema, written=samples.written if isinstance(samples, Samples) else ()
        )

    def _custom(self, samples: list[dict[str, Any]]) -> Columns:
        assert self.collate is not None
        what = f"collate {name_of(self.collate)}"
        try:
            result = self.collate(samples)
        except BaseException as error:
            if isinstance(error, ConfigError) or is_interrupt(error):
                raise
            raise failure(what, error, self.collate) from error
        if not isinstance(result, dict):
            raise ConfigError(
                f"{what} returned a {type(result).__name__}; it must be a dict of arrays or lists"
            )
        columns: Columns = {}
        for name, value in result.items():
            try:
                column = as_array(value) if hasattr(value, "__array__") else value
            except Exception as error:  # numbers that numpy has not, say
                kind = type(value).__name__
                raise ConfigError(
                    f"{what} returned a {kind} for {name!r} that cannot be an array: {error}"
                ) from error
            listed = isinstance(column, list) or (
                isinstance(column, np.ndarray) and column.ndim > 0
            )
            if not isinstance(name, str) or not listed or len(column) != len(samples):
                found = (
                    f"an array of shape {np.shape(column)}"
                    if isinstance(column, np.ndarray)
                    else _described(column)
                )
                raise ConfigError(
                    f"{what} returned {found} for {name!r}; each field must be an array or list with the batch, here "
                    f"{len(samples)} samples, as first axis"
                )
            columns[name] = column
        return columns

    @cached_property
    def _program(self) -> Program:
        return compile_stages(self.stages)

    @cached_property
    def _plan(self) -> Plan:
        return lru_cache(maxsize=256)(partial(plan_fields, self._program.head))

    @cached_property
    def _instances(self) -> tuple[threading.Lock, dict[int, Any]]:
        return threading.Lock(), {}

    def _target(self, function: Function) -> Callable[..., Any]:
        """What to call: the function itself, or this worker's one instance of the class."""
        if not function.set_up:
            return function.fn
        lock, instances = self._instances
        with lock:
            if function.number not in instances:
                try:
                    instances[function.number] = function.fn()
                except BaseException as error:
                    if is_interrupt(error):
                        raise
                    line = user_line(error, function.fn)
                    raise ConfigError(
                        f"{function.what}: setting it up failed: {error!r}{line}"
                    ) from error
            return instances[function.number]


def _described(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else f"a {type(value).__name__}"
