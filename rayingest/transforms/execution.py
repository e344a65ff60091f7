"""Running a program over some rows of some blocks.

Owns one run: reading the rows, calling the functions with their generators and places in the batch arrays, and naming
the sample in whatever goes wrong. Decides nothing that the program did not; keeps nothing afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.plan.order.keys import generator
from rayingest.transforms.collate import Written
from rayingest.transforms.decoders import Decoder, media_decoder
from rayingest.transforms.functions import Function, failure, is_interrupt
from rayingest.transforms.images.transform import Transform
from rayingest.transforms.open_block import OpenBlock, Plan
from rayingest.transforms.program import (
    DecodeStep,
    MapStep,
    Program,
    Step,
    gives_fixed,
    no_such_field,
)
from rayingest.transforms.rows import Rows
from rayingest.transforms.schema import Schema, conform
from rayingest.transforms.stages import Select

Sample = dict[str, Any]


class Samples(list[Sample]):
    """Samples of one run.

    `fixed`: fields of 1-D arrays that are known to have one length. `written`: arrays of the whole batch that decoders
    wrote into.
    """

    def __init__(
        self,
        samples: Iterable[Sample] = (),
        *,
        fixed: frozenset[str] = frozenset(),
        written: Written = (),
    ) -> None:
        super().__init__(samples)
        self.fixed, self.written = fixed, written


class Execution:
    """One call of `Pipeline.run`."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        target: Callable[[Function], Callable[..., Any]],
        schema: Schema | None,
        path: str,
        blocks: Sequence[OpenBlock],
        table_of: np.ndarray,
        row_of: np.ndarray,
        ordinals: np.ndarray,
    ) -> None:
        self._program, self._plan, self._target = program, plan, target
        self._schema, self._path = schema, path
        self._table_of, self._row_of = np.asarray(table_of).tolist(), np.asarray(row_of).tolist()
        self._ordinals: list[int] = np.asarray(ordinals).tolist()
        self._blocks = blocks
        self._wholes: dict[tuple[int, str], tuple[np.ndarray, list[Any]]] = {}
        self._fixed = {
            name for number in set(self._table_of) for name in blocks[number].fields.fixed
        }
        self._seed = self._source = 0
        self._epochs: list[int] = []
        self._segments: list[list[Step]] = [[]]
        for step in program.tail:
            if isinstance(step, MapStep) and step.together:
                self._segments.append([step])
            else:
                self._segments[-1].append(step)

    def samples(
        self,
        seed: int,
        epoch: int | np.ndarray,
        source: int,
        bad: dict[int, DataError] | None = None,
    ) -> Samples:
        """All samples, given what random numbers are keyed by; the epoch may be one for each.

        Sample by sample, so that undecoded bytes live no longer than they must; a batch map waits for all. Where `bad`
        is given, samples that cannot be had are left out, and what is wrong with each is put there, by its place.
        """
        self._seed, self._source = seed, source
        self._epochs = np.broadcast_to(epoch, len(self._ordinals)).tolist()
        samples = (
            self._complete(self._run(range(len(self._ordinals))))
            if bad is None
            else self._good(bad)
        )
        return Samples(
            samples.values(),
            fixed=self._program.fixed_at_end(self._fixed),
            written=list(self._wholes.values()),
        )

    def _run(self, places: Iterable[int]) -> dict[int, Sample]:
        """The samples at these places, by place."""
        head, *rest = self._segments
        samples = {i: self._through(head, self._read(i), i) for i in places}
        for together, *steps in rest:
            assert isinstance(together, MapStep)
            samples = self._map_batch(together.function, samples)
            samples = {i: self._through(steps, sample, i) for i, sample in samples.items()}
        return samples

    def _good(self, bad: dict[int, DataError]) -> dict[int, Sample]:
        """The samples that can be had, each judged alone: its company, which differs from run to run, may not matter.

        Where a batch map is at fault, or with it, its samples are read again, as it may have changed them.
        """
        places = range(len(self._ordinals))
        if len(self._segments) > 1:
            try:
                return self._complete(self._run(places))
            except DataError as error:
                if error.transient:
                    raise
        samples: dict[int, Sample] = {}
        for i in places:
            try:
                samples |= self._complete(self._run([i]))
            except DataError as error:
                if error.transient:
                    raise
                bad[i] = error
        return samples

    def _complete(self, samples: dict[int, Sample]) -> dict[int, Sample]:
        """These samples, if each has all that every sample is known to end with."""
        if self._schema is not None:
            for i, sample in samples.items():
                try:
                    samples[i] = conform(sample, self._schema)
                except DataError as error:
                    raise DataError(error.reason, **self._where(i)) from error
            return samples
        for i, sample in samples.items():
            for name in self._program.expected:
                if name not in sample:
                    raise DataError(f"field {name!r} is missing", **self._where(i))
        return samples

    def _read(self, i: int) -> Sample:
        """The sample as it is before the first map: renamed, every field decoded once."""
        block, row = self._blocks[self._table_of[i]], self._row_of[i]
        fields, rows = block.fields, block.rows
        if fields.lacking is not None:
            raise DataError(str(fields.lacking), **self._where(i)) from fields.lacking
        if row in rows.faults:
            raise DataError(rows.faults[row], **self._where(i))
        if rows.has_documents:
            return self._read_document(rows, row, i)
        sample: Sample = {}
        for field, default in fields.plans:
            try:
                value = rows.value(field.raw, row)
            except (
                DataError,
                ValueError,
                OverflowError,
            ) as error:  # a damaged time may be none that Python has
                raise failure("read", error, None, **self._where(i)) from error
            if value is None and rows.has_members:
                continue  # this sample has no such member
            for function in field.decoders:
                value = self._call(function, value, i, field.name)
            if default is not None and value is not None:
                value = self._default(default, field.raw, value, i)
            sample[field.name] = value
        return sample

    def _read_document(self, rows: Rows, row: int, i: int) -> Sample:
        try:
            document = rows.document(row)
            fields = self._plan(tuple(document))
            values = {field: document[field.raw] for field in fields}
        except ConfigError as error:
            raise DataError(str(error), **self._where(i)) from error
        except DataError as error:
            raise failure("read", error, None, **self._where(i)) from error
        self._fixed.update(
            field.name for field in fields if field.decoders and gives_fixed(field.decoders[-1])
        )
        sample: Sample = {}
        for field, undecoded in values.items():
            value = undecoded
            for function in field.decoders:
                value = self._call(function, value, i, field.name)
            if (
                not field.decoders
                and isinstance(value, bytes)
                and (default := media_decoder(field.raw))
            ):
                value = self._default(default, field.raw, value, i)
            sample[field.name] = value
        return sample

    def _default(self, decoder: Decoder, raw: str, value: bytes, i: int) -> Any:
        try:
            return (
                decoder(value, path=self._path)
                if isinstance(decoder, Transform)
                else decoder(value)
            )
        except ConfigError:
            raise
        except Exception as error:
            raise failure(f"decode of {raw!r}", error, decoder, **self._where(i)) from error

    def _through(self, steps: Sequence[Step], sample: Sample, i: int) -> Sample:
        for step in steps:
            if isinstance(step, Select):
                for old in step.fields.values():
                    if old not in sample:
                        raise self._no_such_field("select", old, sample, i)
                sample = {new: sample[old] for new, old in step.fields.items()}
            elif isinstance(step, DecodeStep):
                if step.field not in sample:
                    raise self._no_such_field("decode", step.field, sample, i)
                sample[step.field] = self._call(step.function, sample[step.field], i, step.field)
            else:
                sample = self._call(step.function, sample, i)
                if not isinstance(sample, dict):
                    kind = type(sample).__name__
                    raise DataError(
                        f"{step.function.what} returned {kind}, not a dict of fields",
                        **self._where(i),
                    )
                if step.function.fixed:
                    self._fixed.update(sample)
        return sample

    def _call(self, function: Function, value: Any, i: int, field: str | None = None) -> Any:
        """The function's result for sample i; `field` where it is the decoder of one."""
        extra: list[Any] = []
        named: dict[str, Any] = {}
        if function.rng is not None:
            rng = self._generator(function, i)
            if function.rng == "keyword":
                named["rng"] = rng
            else:
                extra.append(rng)
        if function.out_shape is not None and field is not None:
            named["out"] = self._place(function, field, i)
        if function.takes_path:
            named["path"] = self._path
        target = self._target(function)
        try:
            return target(value, *extra, **named)
        except BaseException as error:  # whatever it is: many a kind would end a worker
            if isinstance(error, ConfigError) or is_interrupt(error):
                raise
            raise failure(function.what, error, function.fn, **self._where(i)) from error

    def _map_batch(self, function: Function, samples: dict[int, Sample]) -> dict[int, Sample]:
        if not samples:
            return {}
        places = list(samples)
        names = samples[places[0]].keys()
        for i, sample in samples.items():
            if sample.keys() != names:
                name = next(iter(sample.keys() ^ names))
                raise DataError(
                    f"field {name!r} is in some samples only: fill it in with .map",
                    **self._where(i),
                )
        columns = {name: [sample[name] for sample in samples.values()] for name in names}
        extra: list[Any] = []
        named: dict[str, Any] = {}
        if function.rng is not None:
            rngs = [self._generator(function, i) for i in places]
            if function.rng == "keyword":
                named["rng"] = rngs
            else:
                extra.append(rngs)
        where = self._where(places[0])
        where = where if len(places) == 1 else {"shard": where["shard"]}
        target = self._target(function)
        try:
            result = target(columns, *extra, **named)
        except BaseException as error:  # whatever it is: many a kind would end a worker
            if isinstance(error, ConfigError) or is_interrupt(error):
                raise
            raise failure(function.what, error, function.fn, **where) from error
        if not isinstance(result, dict):
            raise DataError(
                f"{function.what} returned {type(result).__name__}, not a dict of columns", **where
            )
        for name, column in result.items():
            if _length(column) != len(samples):
                found = (
                    f"{_length(column)} rows"
                    if _length(column) is not None
                    else f"a {type(column).__name__}"
                )
                raise DataError(
                    f"{function.what} was given {len(samples)} rows and returned {found} for {name!r}; it must return "
                    f"a list or array of as many",
                    **where,
                )
        return {
            i: {name: column[n] for name, column in result.items()} for n, i in enumerate(places)
        }

    def _no_such_field(self, verb: str, field: str, sample: Sample, i: int) -> DataError:
        error = no_such_field(verb, field, sample)
        made = DataError(str(error), **self._where(i))
        made.__cause__ = error
        return made

    def _generator(self, function: Function, i: int) -> np.random.Generator:
        return generator(
            self._seed, self._epochs[i], self._source, self._ordinals[i], function.stage
        )

    def _place(self, function: Function, field: str, i: int) -> np.ndarray:
        """Row i of the batch array for this field, which is made when its first row is needed."""
        place = (function.number, field)
        if place not in self._wholes:
            n = len(self._ordinals)
            whole = np.empty((n, *(function.out_shape or ())), function.out_dtype)
            self._wholes[place] = (whole, list(whole))
        view: np.ndarray = self._wholes[place][1][i]
        return view

    def _where(self, i: int) -> dict[str, Any]:
        """What names sample i in an error."""
        return {
            **self._blocks[self._table_of[i]].rows.where(self._row_of[i]),
            "sample": self._ordinals[i],
        }


def _length(column: Any) -> int | None:
    """How many rows a column has, None for what is no column."""
    if isinstance(column, (list, tuple)):
        return len(column)
    shape: tuple[int, ...] = getattr(column, "shape", ())
    return int(shape[0]) if len(shape) else None
