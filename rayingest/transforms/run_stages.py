"""Run the compiled stages over some rows of some blocks.

Owns one run: it reads the rows, calls the functions with their generators and their rows of the
batch arrays, and names the sample in every error. Keeps nothing afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.formats.nested import split_path, take_path
from rayingest.plan.order.randomness import fold, generator
from rayingest.transforms.collate import InPlace
from rayingest.transforms.decoders import Decoder, media_decoder
from rayingest.transforms.functions import Function, failure, is_interrupt
from rayingest.transforms.global_random import Draws
from rayingest.transforms.images.transform import Transform
from rayingest.transforms.open_block import OpenBlock, PlanFields
from rayingest.transforms.raw_block import RawBlock
from rayingest.transforms.schema import Schema, conform
from rayingest.transforms.stages import (
    CompiledStages,
    DecodeStep,
    MapStep,
    Select,
    Step,
    absent_field,
    has_fixed_length,
)

Sample = dict[str, Any]
T = TypeVar("T")


class Samples(list[Sample]):
    """The samples of one run.

    `fixed`: fields of 1-D arrays that are known to have one length. `in_place`: arrays of the whole
    batch that decoders wrote into.
    """

    def __init__(
        self,
        samples: Iterable[Sample] = (),
        *,
        fixed: frozenset[str] = frozenset(),
        in_place: InPlace = (),
    ) -> None:
        super().__init__(samples)
        self.fixed, self.in_place = fixed, in_place


class StageRun:
    """One call of `Pipeline.run`, whose arguments it takes.

    `target` gives the callable of a function: itself, or a worker's instance of a class.
    """

    def __init__(
        self,
        stages: CompiledStages,
        plan: PlanFields,
        target: Callable[[Function], Callable[..., Any]],
        schema: Schema | None,
        image_backend: str,
        draws: Draws,
        blocks: Sequence[OpenBlock],
        table_of: np.ndarray,
        row_of: np.ndarray,
        ordinals: np.ndarray,
    ) -> None:
        self._stages, self._plan, self._target = stages, plan, target
        self._schema, self._image_backend, self._draws = schema, image_backend, draws
        self._table_of, self._row_of = np.asarray(table_of).tolist(), np.asarray(row_of).tolist()
        self._ordinals: list[int] = np.asarray(ordinals).tolist()
        self._blocks = blocks
        # Batch arrays that decoders write into, each with its rows, by function and field.
        self._in_place: dict[tuple[int, str], tuple[np.ndarray, list[Any]]] = {}
        self._fixed = {
            name for number in set(self._table_of) for name in blocks[number].fields.fixed
        }
        self._seed = self._source = 0
        self._epochs: list[int] = []
        # Runs of steps that go sample by sample; each but the first begins with a batch map.
        self._segments: list[list[Step]] = [[]]
        for step in stages.tail:
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
        """Return all samples; `seed`, `epoch` (one, or one for each) and `source` key generators.

        Goes sample by sample, so that undecoded bytes live no longer than they must; a batch map
        waits for all. If `bad` is given, bad samples are left out and their errors put there by
        place.
        """
        self._seed, self._source = seed, source
        self._epochs = np.broadcast_to(epoch, len(self._ordinals)).tolist()
        samples = self._run_seeded(bad) if self._stages.runs_users_code else self._run_all(bad)
        return Samples(
            samples.values(),
            fixed=self._stages.fixed_at_end(self._fixed),
            in_place=list(self._in_place.values()),
        )

    def _run_seeded(self, bad: dict[int, DataError] | None) -> dict[int, Sample]:
        """Return all samples, with the global random generators seeded for each of them."""
        if bad is None:
            return self._draws.run(lambda: self._run_all(None))
        samples, found = self._draws.run(self._run_apart)
        bad.update(found)
        return samples

    def _run_apart(self) -> tuple[dict[int, Sample], dict[int, DataError]]:
        """Return the good samples, and the errors of the bad ones."""
        bad: dict[int, DataError] = {}
        return self._run_all(bad), bad

    def _run_all(self, bad: dict[int, DataError] | None) -> dict[int, Sample]:
        if bad is None:
            return self._complete(self._run(range(len(self._ordinals))))
        return self._run_each(bad)

    def _run(self, places: Iterable[int]) -> dict[int, Sample]:
        """Return the samples at these places, by place."""
        head, *rest = self._segments
        samples = self._one_by_one(0, places, lambda i: self._apply(head, self._read(i), i))
        for number, (together, *steps) in enumerate(rest, 1):
            assert isinstance(together, MapStep)
            samples = self._together(-number, together.function, samples)
            if steps:
                mapped = partial(self._apply_to, samples, steps)
                samples = self._one_by_one(number, samples, mapped)
        return samples

    def _one_by_one(
        self, unit: int, places: Iterable[int], make: Callable[[int], T]
    ) -> dict[int, T]:
        """Return what `make` returns for each place; `unit` numbers the code that it runs."""
        if not self._draws.watches:
            return {i: make(i) for i in places}
        with self._draws.watch(unit):
            if unit not in self._draws:
                return {i: make(i) for i in places}
            made = {}
            for i in places:
                self._draws.seed(unit, self._global_key(unit, i))
                made[i] = make(i)
            return made

    def _together(
        self, unit: int, function: Function, samples: dict[int, Sample]
    ) -> dict[int, Sample]:
        """Return the samples after a batch map.

        If it draws from a global generator, it gets them one by one: a sample's random numbers must
        not depend on the samples that come with it.
        """
        if not self._draws.watches:
            return self._map_batch(function, samples)
        if unit not in self._draws:
            with self._draws.watch(unit):
                return self._map_batch(function, samples)
        return self._one_by_one(
            unit, samples, lambda i: self._map_batch(function, {i: samples[i]})[i]
        )

    def _apply_to(self, samples: Mapping[int, Sample], steps: Sequence[Step], i: int) -> Sample:
        return self._apply(steps, samples[i], i)

    def _global_key(self, unit: int, i: int) -> int:
        """Return the key of the global random generators for sample i."""
        return fold("global", self._seed, self._epochs[i], self._source, self._ordinals[i], unit)

    def _run_each(self, bad: dict[int, DataError]) -> dict[int, Sample]:
        """Return the good samples, each judged alone.

        The samples beside it differ from run to run, so they may not decide. Where a batch map
        fails, all its samples are read again, because it may have changed them.
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
        """Return these samples, checked against the schema or the fields that are expected."""
        if self._schema is not None:
            for i, sample in samples.items():
                try:
                    samples[i] = conform(sample, self._schema)
                except DataError as error:
                    reason = error.reason + self._describe_split(i)
                    raise DataError(reason, **self._where(i)) from error
            return samples
        for i, sample in samples.items():
            for name in self._stages.expected:
                if name not in sample:
                    reason = f"field {name!r} is missing{self._describe_split(i)}"
                    raise DataError(reason, **self._where(i))
        return samples

    def _read(self, i: int) -> Sample:
        """Return the sample as it is before the first map: renamed, every field decoded once."""
        block, row = self._blocks[self._table_of[i]], self._row_of[i]
        fields, rows = block.fields, block.rows
        if fields.error is not None:
            raise DataError(str(fields.error), **self._where(i)) from fields.error
        if row in rows.faults:
            raise DataError(rows.faults[row], **self._where(i))
        if rows.has_documents:
            return self._read_document(rows, row, i)
        sample: Sample = {}
        for field, default in fields.plans:
            try:
                value = rows.value(field.raw, row)
            except (DataError, ValueError, OverflowError) as error:
                # A damaged time may be out of Python's range: ValueError or OverflowError.
                raise failure("read", error, None, **self._where(i)) from error
            if value is None and rows.has_members:
                continue  # this sample has no such member
            for function in field.decoders:
                value = self._call(function, value, i, field.name)
            if default is not None and value is not None:
                value = self._decode_by_default(default, field.raw, value, i)
            sample[field.name] = value
        return sample

    def _read_document(self, rows: RawBlock, row: int, i: int) -> Sample:
        try:
            document = rows.document(row)
            fields = self._plan(tuple(document))
            values = {field: document[field.raw] for field in fields}
        except ConfigError as error:
            raise DataError(str(error), **self._where(i)) from error
        except DataError as error:
            raise failure("read", error, None, **self._where(i)) from error
        self._fixed.update(
            field.name
            for field in fields
            if field.decoders and has_fixed_length(field.decoders[-1])
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
                value = self._decode_by_default(default, field.raw, value, i)
            sample[field.name] = value
        return sample

    def _decode_by_default(self, decoder: Decoder, raw: str, value: bytes, i: int) -> Any:
        try:
            if isinstance(decoder, Transform):
                return decoder(value, image_backend=self._image_backend)
            return decoder(value)
        except ConfigError:
            raise
        except Exception as error:
            raise failure(f"decode of {raw!r}", error, decoder, **self._where(i)) from error

    def _apply(self, steps: Sequence[Step], sample: Sample, i: int) -> Sample:
        for step in steps:
            if isinstance(step, Select):
                sample = {new: self._take(old, sample, i) for new, old in step.fields.items()}
            elif isinstance(step, DecodeStep):
                if step.field not in sample:
                    raise self._absent_field("decode", step.field, sample, i)
                sample[step.field] = self._call(step.function, sample[step.field], i, step.field)
            else:
                sample = self._call(step.function, sample, i)
                if not isinstance(sample, dict):
                    kind = type(sample).__name__
                    raise DataError(
                        f"{step.function.label} returned {kind}, not a dict of fields",
                        **self._where(i),
                    )
                if step.function.fixed_lengths:
                    self._fixed.update(sample)
        return sample

    def _call(self, function: Function, value: Any, i: int, field: str | None = None) -> Any:
        """Return the function's result for sample i; `field` is given for a decoder of that
        field.
        """
        extra: list[Any] = []
        named: dict[str, Any] = {}
        if function.rng is not None:
            rng = self._generator(function, i)
            if function.rng == "keyword":
                named["rng"] = rng
            else:
                extra.append(rng)
        if function.out_shape is not None and field is not None:
            named["out"] = self._batch_row(function, field, i)
        if function.takes_backend:
            named["image_backend"] = self._image_backend
        target = self._target(function)
        try:
            return target(value, *extra, **named)
        except BaseException as error:  # some libraries raise classes that would end a worker
            if isinstance(error, ConfigError) or is_interrupt(error):
                raise
            raise failure(function.label, error, function.fn, **self._where(i)) from error

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
        except BaseException as error:  # some libraries raise classes that would end a worker
            if isinstance(error, ConfigError) or is_interrupt(error):
                raise
            raise failure(function.label, error, function.fn, **where) from error
        if not isinstance(result, dict):
            raise DataError(
                f"{function.label} returned {type(result).__name__}, not a dict of columns",
                **where,
            )
        for name, column in result.items():
            length = _length(column)
            if length != len(samples):
                found = f"a {type(column).__name__}" if length is None else f"{length} rows"
                raise DataError(
                    f"{function.label} was given {len(samples)} rows and returned {found} for "
                    f"{name!r}; it must return a list or array of {len(samples)}",
                    **where,
                )
        return {
            i: {name: column[n] for name, column in result.items()} for n, i in enumerate(places)
        }

    def _take(self, name: str, sample: Sample, i: int) -> Any:
        """Return a field of a sample, or what lies at a dotted path into one."""
        if name in sample:
            return sample[name]
        path = split_path(name, sample)
        if path is None:
            raise self._absent_field("select", name, sample, i)
        try:
            return take_path(sample[path[0]], path[1])
        except KeyError:
            raise self._absent_field("select", name, sample, i) from None

    def _absent_field(self, verb: str, field: str, sample: Sample, i: int) -> DataError:
        cause = absent_field(verb, field, sample)
        error = DataError(f"{cause}{self._describe_split(i)}", **self._where(i))
        error.__cause__ = cause
        return error

    def _generator(self, function: Function, i: int) -> np.random.Generator:
        return generator(
            self._seed, self._epochs[i], self._source, self._ordinals[i], function.stage
        )

    def _batch_row(self, function: Function, field: str, i: int) -> np.ndarray:
        """Return row i of the field's batch array, which is allocated for its first row."""
        key = (function.number, field)
        if key not in self._in_place:
            n = len(self._ordinals)
            whole = np.empty((n, *(function.out_shape or ())), function.out_dtype)
            self._in_place[key] = (whole, list(whole))
        row: np.ndarray = self._in_place[key][1][i]
        return row

    def _describe_split(self, i: int) -> str:
        return self._blocks[self._table_of[i]].rows.describe_split(self._row_of[i])

    def _where(self, i: int) -> dict[str, Any]:
        """Return the parts of an error that name sample i."""
        return {
            **self._blocks[self._table_of[i]].rows.where(self._row_of[i]),
            "sample": self._ordinals[i],
        }


def _length(column: Any) -> int | None:
    """Return the number of rows of a column; None if it is not a list or array."""
    if isinstance(column, (list, tuple)):
        return len(column)
    shape: tuple[int, ...] = getattr(column, "shape", ())
    return int(shape[0]) if len(shape) else None
