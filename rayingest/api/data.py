"""Offer the verbs that all kinds of data share.

Owns what a `Dataset`, a `Mixture` and a `RecordStream` have in common: each is a facade over a
description, immutable and picklable, and every verb returns a new one. A verb that a kind of data
cannot have is not there; calling it all the same raises the reason from `build.compatibility`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
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

from rayingest.build.compatibility import Feature, refusal, refuse_conflicts
from rayingest.build.description import Batching, Description, Padding, Shuffle
from rayingest.build.loader import build_loader
from rayingest.errors import ConfigError
from rayingest.options import Field, Flag, Function, Positive, Seed, checked, one_of
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
    def select(self, *unnamed: Field, **new: Field) -> Self:
        """Keep only these fields, under new names. Other fields are not read where possible.

            data.select(image="jpg", label="cls")

        Args:
            new: by the new name of a field, its name so far.

        Raises:
            ConfigError: an earlier `select` left the field out, or a new name is reserved.
        """
        if unnamed:
            raise ConfigError(
                f"select({unnamed[0]!r}): a field needs a name, as in select(image={unnamed[0]!r})"
            )
        return self._with_stage(Select(new))

    @checked()
    def decode(self, **decoders: Function) -> Self:
        """Decode these fields with functions; the others by their extension or type.

            data.decode(image=ri.images.RandomResizedCrop(224), label=int)

        Args:
            decoders: by field, a function `fn(value)` or `fn(value, rng)` that returns the new
                value. `value` is what the format stores, as a rule bytes; `str` decodes UTF-8.
        """
        return self._with_stage(Decode(decoders))

    @checked()
    def map(self, fn: Function) -> Self:
        """Replace each sample by `fn(sample)`.

        Args:
            fn: a function `fn(sample)` or `fn(sample, rng)` of a dict of fields that returns such a
                dict; or a class without arguments, set up once per worker, whose instances are
                called. `rng` is a numpy Generator of this sample: the same in every run with the
                same seed, on whatever worker.
        """
        return self._with_stage(Map(fn))

    @checked()
    def map_batches(self, fn: Function) -> Self:
        """Replace several samples at a time by `fn(columns)`.

        How many samples come together is not promised: `fn` must treat each row on its own.

        Args:
            fn: a function or class as for `map`, of a dict of equally long lists, one entry per
                sample; it returns such a dict, with as many rows. A second parameter, `rng`, gets
                a list of one generator per row.
        """
        return self._with_stage(MapBatches(fn))

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

        Args:
            size: samples of a global step, all ranks together; each rank gets its slice.
            max_tokens: instead, the limit of tokens of each rank's batch: samples of similar
                `length` from one window, as many as fit when padded to the longest. All ranks have
                the same number of steps. The plan depends on the number of ranks, so a state of
                another number is refused.
            partial: what to do with the samples left at the end of an epoch: "drop" them, "pad" the
                batch with repeats flagged by `__valid__`, or give a "short" batch.
            collate: a function of one rank's samples (a list of dicts) that returns a dict of
                arrays or lists with the rows as first axis, instead of stacking and padding.
            bucketed: put samples of similar `length` into the same step, window by window, so that
                less is padded. The order of lengths changes from epoch to epoch.
            pad: by field, how it is padded, as in
                `{"tokens": ri.Pad(value=-100, multiple_of=8, mask=True)}`.
        """
        self._permit(Feature.BATCH)
        batching = Batching(size, partial, collate, bucketed, dict(pad or {}), max_tokens)
        return self._with(batching=batching)

    loader = verb(build_loader)

    def _permit(self, feature: Feature) -> None:
        """Raise ConfigError if the feature does not go with the description so far."""
        refuse_conflicts([*self._description.features, feature])

    def _with_stage(self, stage: Stage) -> Self:
        return type(self)(self._description.with_stage(stage))

    def _with(self, **changes: Any) -> Self:
        """Return the same with a changed description. Raises ConfigError if it contradicts."""
        description = replace(self._description, **changes)
        refuse_conflicts(description.features)
        return type(self)(description)


@dataclass(frozen=True, repr=False)
class FiniteData(Data[D_co]):
    """Data with an end, whose samples can be shuffled."""

    @checked()
    def shuffle(
        self, seed: Seed = 0, window: Positive | None = None, lanes: Positive | None = None
    ) -> Self:
        """Shuffle the samples, in another order in every epoch.

        Args:
            seed: the order depends on it, on the epoch and on the data alone.
            window: number of samples, over all ranks, that are shuffled together; shards and blocks
                are shuffled as a whole too. Default: 512 MiB of raw samples, at least 16 batches.
            lanes: number of parts of the data that are read side by side; divides the batch.
                Default: chosen by the size of the data. Not for a mixture, whose sources have each
                their own.
        """
        return self._with(shuffling=Shuffle(seed, window, lanes))


def description_of(data: Data[D_co]) -> D_co:
    """Return the description behind a facade, for tools that look at it."""
    return data._description
