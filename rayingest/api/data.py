"""Offer the verbs that all kinds of data share.

Owns what a `Dataset`, a `Mixture` and a `RecordStream` have in common: each is a facade over a
description, immutable and picklable, and every verb returns a new one. A verb that a kind of data
cannot have is not there; calling it all the same raises the reason from `build.compatibility`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
)

from rayingest.build.compatibility import Feature, refusal, refuse_conflicts, refuse_place
from rayingest.build.description import Batching, Description, Padding, Shuffle
from rayingest.build.loader import build_loader
from rayingest.errors import ConfigError
from rayingest.options import (
    Field,
    Flag,
    Function,
    Positive,
    Seed,
    checked,
    one_of,
    option_type,
    unnamed_value,
)
from rayingest.plan.order.parameters import PARTIALS
from rayingest.transforms.stages import Decode, Map, MapBatches, Select, Stage

P = ParamSpec("P")
R = TypeVar("R")
D_co = TypeVar("D_co", bound=Description, covariant=True)


def verb(call: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Make a verb of a function of a description."""

    first, *others = inspect.signature(call).parameters.values()
    me = first.replace(name="self", annotation=inspect.Parameter.empty)

    @functools.wraps(call)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return call(self._description, *args, **kwargs)

    method.__signature__ = inspect.Signature([me, *others])  # type: ignore[attr-defined]
    return method


def _decoder(value: Any) -> Any:
    """Return a decoder; a list of image transforms becomes a chain, as in a configuration."""
    if not isinstance(value, (list, tuple)):
        if not callable(value):
            raise TypeError
        return value
    from rayingest.transforms.images import Compose

    return Compose(*value)


def _functions(value: Any) -> tuple[Any, ...]:
    functions = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not functions or not all(map(callable, functions)):
        raise TypeError
    return functions


Decoder = Annotated[
    Callable[..., Any] | Sequence[Any],
    option_type(
        "a function, or another callable, or a list of transforms of ri.images, as in "
        "[ri.images.Resize(256), ri.images.CenterCrop(224)]",
        _decoder,
    ),
]
Unnamed = Annotated[Any, option_type("a field with a name", lambda value: value)]
Functions = Annotated[
    Any, option_type("a function, or another callable, or a list of them", _functions)
]
"""One function, or several; the call gets a tuple."""


def _check_size(given: Mapping[str, Any]) -> None:
    if (given.get("size") is None) == (given.get("max_tokens") is None):
        raise ConfigError(
            "a batch has a number of samples, as in batch(256), or a limit of tokens, as in "
            "batch(max_tokens=4096): give one of them"
        )


@dataclass(frozen=True, repr=False)
class Data(Generic[D_co]):
    """Data of any kind, and what is done with them. Immutable and picklable."""

    _description: D_co
    _kind: ClassVar[Feature | None] = None
    """What the table of compatibility calls this kind; None has all verbs."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._description}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            error = refusal(name, self._kind)
            if error is None:
                error = AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise error

    @checked()
    def select(self, *unnamed: Unnamed, **new: Field) -> Self:
        """Keep only these fields, under new names. Other fields are not read where possible.

            data.select(image="jpg", label="cls")

        Args:
            new: by the new name of a field, its name so far.

        Raises:
            ConfigError: an earlier `select` left the field out, or a new name is reserved.
        """
        if unnamed:
            raise ConfigError(unnamed_value("select", unnamed[0]))
        return self._with_stages(Feature.SELECT, Select, new)

    @checked()
    def decode(self, **decoders: Decoder) -> Self:
        """Decode these fields with functions; the others by their extension or type.

            data.decode(image=ri.images.RandomResizedCrop(224), label=int)

        Args:
            decoders: by field, a function `fn(value)` or `fn(value, rng)` that returns the new
                value, or a list of transforms of `ri.images`, applied in this order. `value` is
                the value that the format stores, as a rule bytes; `str` decodes UTF-8.
        """
        return self._with_stages(Feature.DECODE, Decode, decoders)

    @checked()
    def map(self, fn: Functions) -> Self:
        """Replace each sample by `fn(sample)`. Comes before `batch`.

        Args:
            fn: a function `fn(sample)` or `fn(sample, rng)` of a dict of fields that returns such a
                dict; or a class without arguments, set up once per worker, whose instances are
                called. `rng` is a numpy Generator of this sample: the same in every run with the
                same seed, on whatever worker. Or a list of them, called in this order.
        """
        return self._with_stages(Feature.MAP, Map, *fn)

    @checked()
    def map_batches(self, fn: Functions) -> Self:
        """Replace several samples at a time by `fn(columns)`. Comes before `batch`.

        How many samples come together is not promised: `fn` must treat each row on its own.

        Args:
            fn: a function or class as for `map`, of a dict of equally long lists, one entry per
                sample; it returns such a dict, with as many rows. A second parameter, `rng`, gets
                a list of one generator per row. Or a list of them, called in this order.
        """
        return self._with_stages(Feature.MAP_BATCHES, MapBatches, *fn)

    @checked(_check_size)
    def batch(
        self,
        size: Positive | None = None,
        *,
        max_tokens: Positive | None = None,
        partial: Annotated[str, one_of(*PARTIALS)] = "drop",
        collate: Function | None = None,
        bucketed: Flag = False,
        pad: Padding | None = None,
    ) -> Self:
        """Put samples together: `size` of them per step, or as many as `max_tokens` hold.

        A batch is a dict. Numbers and arrays of one shape become arrays with the rows as first
        axis, anything else becomes a list. `__index__` (int64, [rows]) has the ordinal of each
        row's sample; `__valid__` (bool, [rows]), where rows can be repeats or replacements, is
        False for those.

        It may be called again, for another loader with other batches of the same data: the last
        call counts.

        Args:
            size: samples of a global step, all ranks together; each rank gets its slice.
            max_tokens: instead, the limit of tokens of each rank's batch: samples of similar
                `length` from one window, as many as fit when padded to the longest. All ranks have
                the same number of steps. The plan depends on the number of ranks, so a state of
                another number is refused.
            partial: what to do with the samples left at the end of an epoch: "drop" them, "pad" the
                batch with repeats flagged by `__valid__`, or give a "short" batch. A rank may get
                no valid row of a padded batch, and no row of a short one: average losses by their
                counts, not by ranks.
            collate: a function of one rank's samples (a list of dicts) that returns a dict of
                arrays or lists with the rows as first axis, instead of stacking and padding.
            bucketed: put samples of similar `length` into the same step, window by window, so that
                less is padded. The order of lengths changes from epoch to epoch.
            pad: by field, how it is padded, as in
                `{"tokens": ri.Pad(value=-100, multiple_of=8, mask=True)}`.
        """
        batching = Batching(size, partial, collate, bucketed, dict(pad or {}), max_tokens)
        return self._with(Feature.BATCH, batching=batching)

    loader = verb(build_loader)

    def _permit(self, verb: Feature) -> None:
        """Raise ConfigError if the verb does not go with the description, or comes too late."""
        features = list(self._description.features)
        refuse_conflicts([*features, verb])
        refuse_place(verb, features)

    def _with_stages(self, verb: Feature, kind: Callable[[Any], Stage], *work: Any) -> Self:
        """Return the same with one more stage for each `work`."""
        self._permit(verb)
        description = self._description
        for one in work:
            description = description.with_stage(kind(one))
        return type(self)(description)

    def _with(self, verb: Feature, **changes: Any) -> Self:
        """Return the same with a changed description. Raises ConfigError if it contradicts."""
        self._permit(verb)
        description = replace(self._description, **changes)
        refuse_conflicts(description.features)
        return type(self)(description)


@dataclass(frozen=True, repr=False)
class FiniteData(Data[D_co]):
    """Data with an end, whose samples can be shuffled."""

    @checked()
    def shuffle(
        self, *, seed: Seed = 0, window: Positive | None = None, lanes: Positive | None = None
    ) -> Self:
        """Shuffle the samples, in another order in every epoch.

            data.shuffle(seed=17, window=65_536)

        Args:
            seed: the order depends on it, on the epoch and on the data alone.
            window: number of samples, over all ranks, that are shuffled together; shards and blocks
                are shuffled as a whole too. Default: 512 MiB of raw samples, at least 16 batches.
            lanes: number of parts of the data that are read side by side; divides the batch.
                Default: chosen by the size of the data. Not for a mixture, whose sources have each
                their own.
        """
        return self._with(Feature.SHUFFLE, shuffling=Shuffle(seed, window, lanes))


def description_of(data: Data[D_co]) -> D_co:
    """Return the description behind a facade, for tools that look at it."""
    return data._description
