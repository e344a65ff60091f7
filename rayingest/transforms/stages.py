"""The stages of a description, as values: what `.select`, `.decode`, `.map` and `.map_batches` each add.

Owns their validation, early, in the user's process. Executes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rayingest.errors import ConfigError
from rayingest.transforms.functions import decode_function, map_function
from rayingest.transforms.schema import RESERVED


@dataclass(frozen=True)
class Select:
    """Keep only these fields: {new name: old name}. One old field may be taken under several names."""

    fields: Mapping[str, str]

    def __post_init__(self) -> None:
        wrong = {
            new: old
            for new, old in self.fields.items()
            if not isinstance(new, str) or not isinstance(old, str)
        }
        if wrong or not self.fields:
            raise ConfigError(
                f"select takes new names and the fields they stand for, as in image='jpg', not {wrong}"
            )
        taken = [new for new in self.fields if new in RESERVED]
        if taken:
            raise ConfigError(
                f"select: no field may be called {taken[0]!r}, which batches have of the loader's own"
            )
        object.__setattr__(self, "fields", dict(self.fields))


@dataclass(frozen=True)
class Decode:
    """Decode these fields so: {field: fn(value) or fn(value, rng)}, in place of what their names say."""

    functions: Mapping[str, Callable[..., Any]]

    def __post_init__(self) -> None:
        if not self.functions:
            raise ConfigError(
                "decode takes fields and their decoders, as in image=ri.images.Resize(224)"
            )
        for field, fn in self.functions.items():
            decode_function(field, fn)
        object.__setattr__(self, "functions", dict(self.functions))


@dataclass(frozen=True)
class Map:
    """Replace every sample: fn(sample) or fn(sample, rng) takes and returns a dict.

    A class is set up once per worker, without arguments, and its instance is called.
    """

    fn: Callable[..., Any]

    def __post_init__(self) -> None:
        map_function("map", self.fn)


@dataclass(frozen=True)
class MapBatches:
    """Replace several samples at once: fn(columns) or fn(columns, rngs) takes and returns a dict of lists or arrays.

    It gets {field: list of values}, with `rngs` a list of one generator per row, and gives as many rows back. How many
    rows come together is not promised: it has to treat every row on its own. A class is set up once per worker.
    """

    fn: Callable[..., Any]

    def __post_init__(self) -> None:
        map_function("map_batches", self.fn)


Stage = Select | Decode | Map | MapBatches
