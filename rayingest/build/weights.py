"""Weights of samples: how often each is drawn, as users say it.

Owns what `.weighted` takes, and what becomes of numbers or labels that are known of every sample.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from rayingest.build.statistic import SampleStatistic
from rayingest.errors import ConfigError
from rayingest.options.checked import option_type
from rayingest.plan.order.subset import Subset
from rayingest.transforms.functions import name_of
from rayingest.transforms.stages import Stage

if TYPE_CHECKING:
    from rayingest.plan.order.weighted import Weights


def _by(value: Any) -> Any:
    """A field's name or a function, as it is; anything else as an array."""
    if callable(value) or (isinstance(value, str) and value.strip()):
        return value
    if isinstance(value, (str, bytes)):
        raise TypeError
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "biufUS":
        raise TypeError
    return array


By = Annotated[
    str | Callable[..., Any] | Sequence[float],
    option_type(
        "a field's name, a function of a sample, or an array with a number for each sample", _by
    ),
]


def one_weight(given: Mapping[str, Any]) -> None:
    """ConfigError unless it is either weights or classes that are given."""
    if (given.get("by") is None) == (given.get("balance") is None):
        raise ConfigError(
            "samples are drawn by weights, as in weighted('quality'), or balance=...: give one of them"
        )


@dataclass(frozen=True)
class NumberOf:
    """The number in a field."""

    field: str

    def __call__(self, sample: dict[str, Any]) -> Any:
        return sample[self.field]


@dataclass(frozen=True)
class LabelOf:
    """A class, as a number below 2**32: whole numbers are themselves, of anything else it is a hash."""

    of: str | Callable[[dict[str, Any]], Any]

    def __call__(self, sample: dict[str, Any]) -> int:
        label = sample[self.of] if isinstance(self.of, str) else self.of(sample)
        if isinstance(label, (int, np.integer)) and 0 <= label < 1 << 32:
            return int(label)
        return int.from_bytes(hashlib.blake2b(repr(label).encode(), digest_size=4).digest())


@dataclass(frozen=True, eq=False)
class Weighting:
    """`by` gives weights, or where it is `balanced` classes, all of which come equally often. `draws` are a cycle's,
    None: as many as there are samples.
    """

    by: SampleStatistic | np.ndarray
    balanced: bool
    draws: int | None

    @classmethod
    def of(cls, by: Any, balance: Any, draws: int | None, stages: tuple[Stage, ...]) -> Weighting:
        """Of what `.weighted` is given, one of the two, for samples as they are after these stages."""
        given, balanced = (by, False) if balance is None else (balance, True)
        if isinstance(given, np.ndarray):
            return cls(given, balanced, draws)
        is_field = isinstance(given, str)
        name, fields = (
            f"weighted({given if is_field else name_of(given)})",
            (given,) if is_field else None,
        )
        if balanced:
            return cls(
                SampleStatistic(name, LabelOf(given), stages, fields, gives=int), balanced, draws
            )
        return cls(
            SampleStatistic(
                name, NumberOf(given) if is_field else given, stages, fields, gives=float
            ),
            balanced,
            draws,
        )

    def weights(self, found: np.ndarray, subset: Subset) -> Weights:
        """Of what is found of every sample, of which there are those of the subset. Raises ConfigError."""
        from rayingest.plan.order.weighted import Weights

        if len(found) != subset.manifest.num_samples:
            there = f"{subset.manifest.num_samples:,} samples"
            raise ConfigError(
                f"weighted: the array has {len(found):,} entries, and needs one for each of {there}"
            )
        if self.balanced:
            _, label = np.unique(found, return_inverse=True)
            counts = sum(
                np.bincount(label[ordinals], minlength=label.max() + 1)
                for ordinals in subset.ordinals()
            )
            return Weights(1 / np.maximum(1, counts)[label], label)
        weights = found.astype(np.float64)
        wrong = np.flatnonzero(~((weights >= 0) & (weights < math.inf)))
        if len(wrong):
            said = f"the weight of sample {wrong[0]} is {weights[wrong[0]]}"
            raise ConfigError(f"weighted: {said}, which is no number of 0 or more")
        return Weights(weights)
