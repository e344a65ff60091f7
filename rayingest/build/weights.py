"""Turn the options of `weighted` into a weight for each sample.

Owns which values `weighted` accepts, and how numbers or labels become weights. How samples are
drawn by their weights is the business of `plan.order.weighted`.
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
    """Return a field's name or a function as it is, any other value as an array."""
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


def check_weights(options: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the options are either weights or classes, not both."""
    if (options.get("by") is None) == (options.get("balance") is None):
        raise ConfigError(
            "samples are drawn by weights, as in weighted('quality'), or balance=...: "
            "give one of them"
        )


@dataclass(frozen=True)
class NumberOf:
    """The number in a field."""

    field: str

    def __call__(self, sample: dict[str, Any]) -> Any:
        return sample[self.field]


@dataclass(frozen=True)
class LabelOf:
    """The class of a sample as a number below 2**32: the label if it is one, else a hash of it."""

    of: str | Callable[[dict[str, Any]], Any]

    def __call__(self, sample: dict[str, Any]) -> int:
        label = sample[self.of] if isinstance(self.of, str) else self.of(sample)
        if isinstance(label, (int, np.integer)) and 0 <= label < 1 << 32:
            return int(label)
        return int.from_bytes(hashlib.blake2b(repr(label).encode(), digest_size=4).digest())


@dataclass(frozen=True, eq=False)
class Weighting:
    """How samples are weighted: `by` gives a weight for each sample, or a class if `balanced`.

    Balanced classes come equally often. `draws`: the number of draws in a pass over the data, by
    default the number of samples.
    """

    by: SampleStatistic | np.ndarray
    balanced: bool
    draws: int | None

    @classmethod
    def of(cls, by: Any, balance: Any, draws: int | None, stages: tuple[Stage, ...]) -> Weighting:
        """Make one of `by` or `balance`, for samples as they are after these stages."""
        values, balanced = (by, False) if balance is None else (balance, True)
        if isinstance(values, np.ndarray):
            return cls(values, balanced, draws)
        is_field = isinstance(values, str)
        name = f"weighted({values if is_field else name_of(values)})"
        fields = (values,) if is_field else None
        if balanced:
            statistic = SampleStatistic(name, LabelOf(values), stages, fields, int)
        else:
            fn = NumberOf(values) if is_field else values
            statistic = SampleStatistic(name, fn, stages, fields, float)
        return cls(statistic, balanced, draws)

    def weights(self, values: np.ndarray, subset: Subset) -> Weights:
        """Return the weights of all samples from the numbers or classes of all samples.

        Classes are counted in the subset only. Raises ConfigError.
        """
        from rayingest.plan.order.weighted import Weights

        if len(values) != subset.manifest.num_samples:
            samples = f"{subset.manifest.num_samples:,} samples"
            raise ConfigError(
                f"weighted: the array has {len(values):,} entries; "
                f"it must have one for each of {samples}"
            )
        if self.balanced:
            _, label = np.unique(values, return_inverse=True)
            counts = sum(
                np.bincount(label[ordinals], minlength=label.max() + 1)
                for ordinals in subset.ordinals()
            )
            return Weights(1 / np.maximum(1, counts)[label], label)
        weights = values.astype(np.float64)
        wrong = np.flatnonzero(~((weights >= 0) & (weights < math.inf)))
        if len(wrong):
            problem = f"the weight of sample {wrong[0]} is {weights[wrong[0]]}"
            raise ConfigError(f"weighted: {problem}; a weight must be a finite number of 0 or more")
        return Weights(weights)
