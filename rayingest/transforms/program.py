"""Stages compiled to steps: which functions run on which field, numbered, and what can be known before any data.

Owns the order of things: everything up to the first map works on undecoded fields (renames and chosen decoders are
noted, then every field is decoded once), everything after it on the sample as it is. Executes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rayingest.errors import ConfigError
from rayingest.transforms.functions import Function, decode_function, map_function
from rayingest.transforms.stages import Decode, Map, MapBatches, Select, Stage


@dataclass(frozen=True)
class DecodeStep:
    """Apply a decoder to one field."""

    field: str
    function: Function


@dataclass(frozen=True)
class MapStep:
    """Replace a sample, or (`together`) all of them at once."""

    function: Function
    together: bool


Step = Select | DecodeStep | MapStep


@dataclass(frozen=True)
class FieldPlan:
    """One field of a sample before the first map: where it is read, and its decoders (none: the default)."""

    name: str
    raw: str
    decoders: tuple[Function, ...] = ()


@dataclass(frozen=True)
class Program:
    """What a worker does with each sample.

    `head` are the steps before the first map (no maps), `tail` the rest. `expected` are the fields that every sample is
    known to end with; `known_bytes` are those of decoded fields of known shape.
    """

    head: tuple[Step, ...]
    tail: tuple[Step, ...]
    expected: tuple[str, ...]
    known_bytes: int

    def fixed_at_end(self, fixed: Iterable[str]) -> frozenset[str]:
        """The fields of 1-D arrays of one length at the end, given those before the first map.

        A map may put anything into a field, but a length that was promised stays promised: otherwise which columns a
        batch has would depend on what the map does to it.
        """
        names = set(fixed)
        for step in self.tail:
            if isinstance(step, Select):
                names = {new for new, old in step.fields.items() if old in names}
            elif isinstance(step, DecodeStep):
                names = (
                    (names | {step.field}) if gives_fixed(step.function) else (names - {step.field})
                )
        return frozenset(names)


def gives_fixed(function: Function) -> bool:
    """Whether a decoder's results are 1-D arrays of one length."""
    return function.out_shape is not None and len(function.out_shape) == 1


def compile_stages(stages: Sequence[Stage]) -> Program:
    """The steps of a description, its functions numbered in order, with a count of their own for random ones."""
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
    return Program(
        tuple(steps[:first_map]), tuple(steps[first_map:]), expected, sum(sizes.values())
    )


def _steps(stages: Sequence[Stage]) -> Iterable[Step]:
    number = random = 0

    def numbered(function: Function) -> Function:
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
                yield DecodeStep(field, numbered(decode_function(field, fn)))
        elif isinstance(stage, Map):
            yield MapStep(numbered(map_function("map", stage.fn)), together=False)
        elif isinstance(stage, MapBatches):
            yield MapStep(numbered(map_function("map_batches", stage.fn)), together=True)


def _result_bytes(function: Function) -> int:
    return (
        0
        if function.out_shape is None
        else math.prod(function.out_shape) * np.dtype(function.out_dtype).itemsize
    )


def plan_fields(head: Sequence[Step], names: tuple[str, ...]) -> tuple[FieldPlan, ...]:
    """What becomes of raw fields of these names before the first map; ConfigError for one that is not there."""
    plans: Mapping[str, FieldPlan] = {name: FieldPlan(name, name) for name in names}
    for step in head:
        if isinstance(step, Select):
            for old in step.fields.values():
                if old not in plans:
                    raise no_such_field("select", old, plans)
            plans = {new: replace(plans[old], name=new) for new, old in step.fields.items()}
        elif isinstance(step, DecodeStep):
            if step.field not in plans:
                raise no_such_field("decode", step.field, plans)
            plan = plans[step.field]
            # Only the last decoder's results live in the batch, so only it writes in place.
            before = tuple(replace(function, out_shape=None) for function in plan.decoders)
            plans = {**plans, step.field: replace(plan, decoders=(*before, step.function))}
    return tuple(plans.values())


def no_such_field(verb: str, field: str, there: Iterable[str]) -> ConfigError:
    """For a field that is asked for and is not there."""
    return ConfigError(
        f"{verb}: there is no field {field!r}; there are {', '.join(map(repr, there)) or 'none'}"
    )
