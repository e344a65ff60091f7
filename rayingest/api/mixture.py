"""Mix several data sets into one, of which each batch has its share of every source.

Owns what `ri.mix` takes, and the `Mixture` it returns: verbs that work on samples work on those of
every source; verbs that choose samples belong to the sources, before they are mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from rayingest.api.data import Data, FiniteData, description_of
from rayingest.build.compatibility import Feature, find_conflict
from rayingest.build.mixture import MixedSources
from rayingest.errors import ConfigError
from rayingest.options import Flag, OptionTypeError, checked, option_type
from rayingest.plan.order.mixture import UNTIL


def _sources(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    if not value:
        raise OptionTypeError("it is empty")
    for name, source in value.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise OptionTypeError(f"{name!r} is not a name: text without '/'")
        if not isinstance(source, Data):
            raise OptionTypeError(f"{name!r} is a {type(source).__name__}")
    return dict(value)


def _weights(value: Any) -> dict[int, dict[str, float]]:
    if not isinstance(value, Mapping) or not value:
        raise TypeError
    by_step = value if all(isinstance(step, int) for step in value) else {0: value}
    for step, weights in by_step.items():
        if isinstance(step, bool) or step < 0 or not isinstance(weights, Mapping):
            raise TypeError
        for name, weight in weights.items():
            if (
                isinstance(weight, bool)
                or not isinstance(weight, (int, float))
                or not 0 <= weight < float("inf")
            ):
                raise OptionTypeError(f"{weight!r} for {name!r} is not a number of 0 or more")
        if not any(weights.values()):
            raise OptionTypeError(f"all weights are 0 from step {step} on")
    if 0 not in by_step:
        raise OptionTypeError("the weights from step 0 on are missing")
    return {int(step): dict(by_step[step]) for step in sorted(by_step)}


def _until(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError
    if value not in UNTIL if isinstance(value, str) else value < 1:
        raise ValueError
    return value


Sources = Annotated[
    Mapping[str, Any], option_type("data sets by name, as in {'web': a, 'code': b}", _sources)
]
GivenWeights = Annotated[
    Mapping[Any, Any],
    option_type(
        "numbers by source, as in {'web': 7, 'code': 3}, or these by step, as in "
        "{0: {...}, 10_000: {...}}",
        _weights,
    ),
]
Until = Annotated[str | int, option_type("'first', 'all', or a number of samples", _until)]


def _check_mix(given: Mapping[str, Any]) -> None:
    _check_sources(given["sources"])
    _check_weights(given)


def _check_sources(sources: Mapping[str, Data[Any]]) -> None:
    for name, source in sources.items():
        conflict = find_conflict([*description_of(source).features, Feature.SOURCE_OF_MIX])
        if conflict is not None:
            raise ConfigError(f"{conflict}; the source is {name!r}")


def _check_weights(given: Mapping[str, Any]) -> None:
    names, by_step = given["sources"], given.get("weights") or {}
    for step, weights in by_step.items():
        at = f" from step {step} on" if len(by_step) > 1 else ""
        for name in names:
            if name not in weights:
                raise ConfigError(
                    f"weights: the weight of {name!r}{at} is missing; give 0 for no sample"
                )
        for name in weights:
            if name not in names:
                raise ConfigError(
                    f"weights: {name!r} has a weight{at} and is not a source; the sources are "
                    f"{', '.join(names)}"
                )
    for name in names if by_step else ():
        if not any(weights[name] for weights in by_step.values()):
            raise ConfigError(f"weights: the weight of {name!r} is always 0: leave the source out")


@checked(_check_mix)
def mix(
    sources: Sources,
    weights: GivenWeights | None = None,
    until: Until = "first",
    stratified: Flag = True,
) -> Mixture:
    """Mix data sets: after any number of samples, each source has its share within one sample.

        data = ri.mix({"web": web, "code": code}, {"web": 7, "code": 3}).shuffle(seed=1).batch(64)

    Each source has its own order and its own passes: at its end it begins again, in another order.
    Sources may have different formats and stages; in the end their samples must have the same
    fields. A source may be a mixture, whose shares then hold among its own samples. Batches have
    `__source__` (int64, [rows]: the place of each row's source in the mixture's `names`), and
    `__index__` counts in that source.

    `.shuffle` shuffles each source that has no shuffle of its own, with a seed of its own; the
    window counts samples of all sources. Stages after `mix` apply to all sources. Verbs that choose
    samples (`where`, `take`, ...) come before. Neither a mixture nor its sources can be packed,
    bucketed, limited by `max_tokens`, or `weighted`.

    Args:
        sources: data sets by name.
        weights: the share of each source, in any unit. Shares that change are given by the step of
            the run, counted through all epochs:
            `{0: {"web": 9, "code": 1}, 10_000: {"web": 1, "code": 1}}`. Default: the number of
            samples of each source.
        until: the end of an epoch: the end of the "first" source, the end of "all" sources, or a
            number of samples; with `partial="drop"` at the last full batch before. The next epoch
            goes on behind it.
        stratified: True: each batch has its exact share of every source, as has, nearly, each
            rank's part of it, and weights change at their exact step. False: shares vary by chance,
            and are exact in every 16 batches, so that a change of weights spreads over up to 16;
            needs `.shuffle`.
    """
    descriptions = {name: description_of(source) for name, source in sources.items()}
    return Mixture(
        MixedSources(sources=descriptions, weights=weights, until=until, stratified=stratified)
    )


@dataclass(frozen=True, repr=False)
class Mixture(FiniteData[MixedSources]):
    """Several data sets as one; `mix` makes it."""

    _kind: ClassVar[Feature] = Feature.MIX

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, by the numbers in `__source__`.

        A source of a mixture inside has the name of both: "web/news".
        """
        return self._description.names
