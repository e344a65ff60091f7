"""Describe the stages of a stream as values, and compile them to steps.

Owns the validation of stages, early, in the user's process, and the rules of their order:

- everything before the first map works on undecoded fields: renames and chosen decoders are noted,
  then every field is decoded once;
- everything from the first map on works on the sample as the step before left it.

Calls no function of a stage: `run_stages` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rayingest.errors import ConfigError, DataError
from rayingest.formats.nested import split_path, take_path
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.functions import Function, decode_function, map_function
from rayingest.transforms.schema import RESERVED
from rayingest.util.names import show_names


class _Marked:
    """A stage with the mark of its code.

    The mark is taken when the stage is made, before its code runs and fills caches.
    """

    mark: str

    def _take_mark(self) -> None:
        own = {name: value for name, value in vars(self).items() if name != "mark"}
        object.__setattr__(self, "mark", code_mark((type(self).__name__, own)))


@dataclass(frozen=True)
class Select(_Marked):
    """Keep only these fields: {new name: old name}. An old field may have several."""

    fields: Mapping[str, str]

    def __post_init__(self) -> None:
        wrong = {
            new: old
            for new, old in self.fields.items()
            if not isinstance(new, str) or not isinstance(old, str)
        }
        if wrong or not self.fields:
            raise ConfigError(
                f"select: expected new names and the fields they stand for, as in image='jpg', "
                f"not {wrong}"
            )
        reserved = [new for new in self.fields if new in RESERVED]
        if reserved:
            raise ConfigError(
                f"select: the name {reserved[0]!r} is reserved for a column that the loader adds; "
                "choose another name"
            )
        object.__setattr__(self, "fields", dict(self.fields))
        self._take_mark()


@dataclass(frozen=True)
class Decode(_Marked):
    """Decode fields with these functions: {field: fn(value) or fn(value, rng)}.

    Each replaces the decoder that the field's name or encoding would select.
    """

    functions: Mapping[str, Callable[..., Any]]

    def __post_init__(self) -> None:
        if not self.functions:
            raise ConfigError(
                "decode: no field is named; give fields and their decoders, as in "
                "image=ri.images.Resize(224)"
            )
        for field, fn in self.functions.items():
            decode_function(field, fn)
        object.__setattr__(self, "functions", dict(self.functions))
        self._take_mark()


@dataclass(frozen=True)
class Map(_Marked):
    """Replace every sample: fn(sample) or fn(sample, rng) takes and returns a dict of fields.

    A class is set up once per worker, without arguments; its instance is then called.
    """

    fn: Callable[..., Any]

    def __post_init__(self) -> None:
        map_function("map", self.fn)
        self._take_mark()


@dataclass(frozen=True)
class MapBatches(_Marked):
    """Replace several samples at once: fn(columns) or fn(columns, rngs).

    `columns` is {field: list of values}; the function returns a dict of lists or arrays with one
    item per row. `rngs` is a list of one generator per row. The number of rows in a call is not
    promised, so the function has to treat every row on its own. A class is set up once per worker.
    """

    fn: Callable[..., Any]

    def __post_init__(self) -> None:
        map_function("map_batches", self.fn)
        self._take_mark()


Stage = Select | Decode | Map | MapBatches


@dataclass(frozen=True)
class DecodeStep:
    """Apply a decoder to one field."""

    field: str
    function: Function


@dataclass(frozen=True)
class MapStep:
    """Replace a sample, or (`together`) all samples of a run at once."""

    function: Function
    together: bool


Step = Select | DecodeStep | MapStep


@dataclass(frozen=True)
class FieldPlan:
    """One field of a sample before the first map: its name, the raw field it is read from, and its
    decoders.

    Without decoders the field's default decoder applies.
    """

    name: str
    raw: str
    decoders: tuple[Function, ...] = ()


@dataclass(frozen=True)
class CompiledStages:
    """The steps that a worker applies to each sample.

    `head` are the steps before the first map, `tail` the rest. `expected` are fields that every
    sample has at the end, as far as a `Select` tells. `known_bytes` is the size of all decoded
    fields whose shape is known.
    """

    head: tuple[Step, ...]
    tail: tuple[Step, ...]
    expected: tuple[str, ...]
    known_bytes: int

    @cached_property
    def runs_users_code(self) -> bool:
        """Whether a step is the user's code."""
        return any(
            not isinstance(step, Select) and step.function.is_users
            for step in (*self.head, *self.tail)
        )

    def fixed_at_end(self, fixed: Iterable[str]) -> frozenset[str]:
        """Return which fields hold 1-D arrays of one length after `tail`, given those before it.

        A map may put anything into a field, but a promised length stays promised: otherwise the
        columns of a batch would depend on the values that the map returns.
        """
        names = set(fixed)
        for step in self.tail:
            if isinstance(step, Select):
                names = {new for new, old in step.fields.items() if old in names}
            elif isinstance(step, DecodeStep):
                names = (
                    (names | {step.field})
                    if has_fixed_length(step.function)
                    else (names - {step.field})
                )
        return frozenset(names)


def has_fixed_length(decoder: Function) -> bool:
    """Return whether all results of a decoder are 1-D arrays of one length."""
    return decoder.out_shape is not None and len(decoder.out_shape) == 1


def compile_stages(stages: Sequence[Stage]) -> CompiledStages:
    """Return the steps of a description.

    Functions are numbered in their order; those that take random numbers have a second count of
    their own, which keys their generators.
    """
    steps = list(_steps(stages))
    first_map = next(
        (place for place, step in enumerate(steps) if isinstance(step, MapStep)), len(steps)
    )
    expected: tuple[str, ...] = ()
    sizes: dict[str, int] = {}
    for step in steps:
        if isinstance(step, Select):
            expected = tuple(step.fields)
            sizes = {new: sizes[old] for new, old in step.fields.items() if old in sizes}
        elif isinstance(step, DecodeStep):
            sizes[step.field] = _result_bytes(step.function)
        else:
            expected = ()
    return CompiledStages(
        tuple(steps[:first_map]), tuple(steps[first_map:]), expected, sum(sizes.values())
    )


def _steps(stages: Sequence[Stage]) -> Iterable[Step]:
    number = random = 0

    def with_number(function: Function) -> Function:
        nonlocal number, random
        number += 1
        if function.rng is None:
            return replace(function, number=number)
        random += 1
        return replace(function, number=number, stage=random - 1)

    for stage in stages:
        if isinstance(stage, Select):
            yield stage
        elif isinstance(stage, Decode):
            for field, fn in stage.functions.items():
                yield DecodeStep(field, with_number(decode_function(field, fn)))
        elif isinstance(stage, Map):
            yield MapStep(with_number(map_function("map", stage.fn)), together=False)
        elif isinstance(stage, MapBatches):
            yield MapStep(with_number(map_function("map_batches", stage.fn)), together=True)


def _result_bytes(decoder: Function) -> int:
    if decoder.out_shape is None:
        return 0
    return math.prod(decoder.out_shape) * np.dtype(decoder.out_dtype).itemsize


def plan_fields(head: Sequence[Step], names: tuple[str, ...]) -> tuple[FieldPlan, ...]:
    """Return the fields that a sample with raw fields of these names has before the first map.

    Raises ConfigError for a field that is asked for and absent.
    """
    plans: Mapping[str, FieldPlan] = {name: FieldPlan(name, name) for name in names}
    for step in head:
        if isinstance(step, Select):
            plans = {
                new: replace(_plan_of("select", old, plans), name=new)
                for new, old in step.fields.items()
            }
        elif isinstance(step, DecodeStep):
            if step.field not in plans:
                raise absent_field("decode", step.field, plans)
            plan = plans[step.field]
            # Only the last decoder's results live in the batch, so only it writes in place.
            before = tuple(replace(function, out_shape=None) for function in plan.decoders)
            plans = {**plans, step.field: replace(plan, decoders=(*before, step.function))}
    return tuple(plans.values())


def _plan_of(verb: str, name: str, plans: Mapping[str, FieldPlan]) -> FieldPlan:
    """Return the plan of a field, or of a dotted path into one. ConfigError if it is absent."""
    if name in plans:
        return plans[name]
    path = split_path(name, plans)
    if path is None:
        raise absent_field(verb, name, plans)
    plan = plans[path[0]]
    before = tuple(replace(function, out_shape=None) for function in plan.decoders)
    return replace(plan, decoders=(*before, Function(f"{verb} of {name!r}", TakePath(path[1]))))


@dataclass(frozen=True)
class TakePath:
    """Take what lies at a path below a field. DataError if there is none."""

    below: tuple[str, ...]

    def __call__(self, value: Any) -> Any:
        try:
            return take_path(value, self.below)
        except KeyError as error:
            raise DataError(f"there is no field {error}") from None


def absent_field(verb: str, field: str, there: Iterable[str]) -> ConfigError:
    """Return the error for a field that a stage names and a sample does not have."""
    return ConfigError(f"{verb}: there is no field {field!r}; there are {show_names(there, field)}")
