"""From what a mixture says of its sources, their shares and their orders, to a planner."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rayingest.build.description import Batching, Description
from rayingest.build.scan import ScanResult
from rayingest.errors import ConfigError
from rayingest.plan.order.interleave import NEVER, LevelTurns, counts_of
from rayingest.plan.order.keys import fold
from rayingest.plan.order.manifest import JoinedManifest
from rayingest.plan.order.mixed import MixedOrder, MixedPlanner
from rayingest.plan.order.mixture import Mixture as Plan
from rayingest.plan.order.mixture import ShuffledTurns
from rayingest.plan.order.order import Order
from rayingest.plan.order.repeated import Succession, source_order
from rayingest.plan.order.subset import brief

Weights = Mapping[int, Mapping[str, float]]
"""By the step from which on they hold, by source."""

D_co = TypeVar("D_co", bound=Description, covariant=True)

_FREE_BATCHES = 16
"""Where batches are free, sources come in proportion in every so many of them."""


@dataclass(frozen=True)
class Recipe:
    """What a mixture says of its sources, by name, of which those that are no mixtures have no recipe.

    `weights`, `until` and `stratified` are as `mix` has them; `seed` is None where nobody has shuffled it.
    """

    sources: Mapping[str, Recipe | None]
    weights: Weights | None
    until: str | int
    stratified: bool
    seed: int | None


@dataclass(frozen=True)
class Leaf(Generic[D_co]):
    """A source that is no mixture, with what the mixtures around it say of it. `name` has theirs before its own.

    `window` counts samples of the mixture `window_of`; None where nobody said how many, or the source did itself.
    """

    name: str
    dataset: D_co
    window: int | None = None
    window_of: str = ""


@dataclass(frozen=True)
class MixtureScanResult(ScanResult):
    """What is known of each source, by name; the manifest is that of all, side by side."""

    parts: Mapping[str, ScanResult] = field(default_factory=dict)

    @property
    def view_mark(self) -> str:
        marks = {name: part.view_mark for name, part in self.parts.items()}
        return brief("; ".join(f"{name}: {mark}" for name, mark in marks.items() if mark))


def make_mixed_planner(
    recipe: Recipe,
    leaves: Sequence[Leaf[Description]],
    batching: Batching,
    known: MixtureScanResult,
    rank: int,
    world_size: int,
    uneven: bool,
) -> MixedPlanner:
    """A rank's part of the order for these data. Raises ConfigError."""
    assert batching.size is not None
    assert isinstance(known.manifest, JoinedManifest)
    if batching.partial != "drop" and len(recipe.weights or ()) > 1:
        raise ConfigError(
            f"weights that change at steps need full ones, and partial={batching.partial!r} gives others at the end of "
            "an epoch: take partial='drop'"
        )
    views = {name: part.view for name, part in known.parts.items()}
    tree = _Tree(batching.size, {name: view.num_samples for name, view in views.items()})
    plan, words = tree.planned(recipe, "", None)
    orders = {
        leaf.name: _order(leaf, known.parts[leaf.name], tree.shares, batching.size)
        for leaf in leaves
    }
    digest = hashlib.blake2b(
        "; ".join(map(str, orders.values())).encode(), digest_size=8
    ).hexdigest()
    order = MixedOrder.over(
        plan,
        list(orders.values()),
        [tree.shares[name] for name in orders],
        f"{brief(words)}; sources {digest}",
        batch=batching.size,
        partial=batching.partial,
        seed=recipe.seed,
        last_change=max(recipe.weights or (0,)) * batching.size,
    )
    manifests = (part.manifest for part in known.parts.values())
    sources = [
        Succession(*of) for of in zip(manifests, orders.values(), views.values(), strict=True)
    ]
    return MixedPlanner(known.manifest, order, sources, rank, world_size, uneven)


def _order(
    leaf: Leaf[Description], known: ScanResult, shares: Mapping[str, float], batch: int
) -> Order:
    """A source's own order."""
    share, shuffling = shares[leaf.name], leaf.dataset.shuffling
    how: dict[str, Any] = {"seed": None} if shuffling is None else dict(vars(shuffling))
    if leaf.window is not None:
        how["window"] = max(1, round(leaf.window * share / shares[leaf.window_of]))
    try:
        return source_order(known.view, samples_per_step=share * batch, share=share, **how)
    except ConfigError as error:
        raise ConfigError(f"source {leaf.name!r}: {error}") from error


class _Tree:
    """Plans of mixtures of sources of these sizes, by name; `shares` are those of all rows that each has at most, by
    the name of a source or what stands before the names of a mixture's.
    """

    def __init__(self, batch: int, sizes: Mapping[str, int]) -> None:
        self.shares: dict[str, float] = {"": 1.0}
        self._batch, self._sizes = batch, sizes

    def planned(self, recipe: Recipe, within: str, seed: int | None) -> tuple[Plan, str]:
        """The plan, and the words that say in a state which it is."""
        seed = seed if recipe.seed is None else recipe.seed
        paths = {name: within + name for name in recipe.sources}
        by_size = {0: {name: self._size(path) for name, path in paths.items()}}
        counts = {
            step * self._batch: counts_of([weights[name] for name in paths])
            for step, weights in (recipe.weights or by_size).items()
        }
        parts: list[int | Plan] = []
        inside: dict[str, str] = {}
        for place, (name, path) in enumerate(paths.items()):
            share = self.shares[within] * max(each[place] / sum(each) for each in counts.values())
            inner = recipe.sources[name]
            if inner is None:
                self.shares[path] = share
                parts.append(self._sizes[path])
            else:
                self.shares[f"{path}/"] = share
                part, inside[name] = self.planned(inner, f"{path}/", seed)
                parts.append(part)
        level = LevelTurns(counts)
        plan = Plan(
            level if recipe.stratified else self._free(level, within, seed), parts, recipe.until
        )
        if plan.rows == NEVER:
            raise ConfigError(
                f"until={recipe.until!r} of a mixture of {', '.join(paths)} never comes: the weights become 0 before; "
                "say how many samples an epoch has, as in until=1_000_000"
            )
        each = [
            ", ".join(f"{name} {count}" for name, count in zip(paths, of, strict=True))
            for of in counts.values()
        ]
        shown = "; ".join(
            f"{words} from row {row} on" if row else words
            for row, words in zip(counts, each, strict=True)
        )
        named = "".join(f"; {name}: ({words})" for name, words in inside.items())
        return plan, f"{shown}, until {recipe.until}{'' if recipe.stratified else ', free'}{named}"

    def _free(self, level: LevelTurns, within: str, seed: int | None) -> ShuffledTurns:
        if seed is None:
            raise ConfigError("mix(stratified=False) needs .shuffle(): chance is its seed's")
        return ShuffledTurns(
            level, _FREE_BATCHES * self._batch, fold("turns", seed, word_of(within))
        )

    def _size(self, path: str) -> int:
        """Samples of a source, or of all sources of a mixture."""
        return sum(size for name, size in self._sizes.items() if f"{name}/".startswith(f"{path}/"))


def word_of(name: str) -> int:
    """A name as a word of 64 bits, for keys."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
