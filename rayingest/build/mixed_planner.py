"""Build the planner of a mixture from the shares and the orders of its sources.

Owns how the options of `mix` and of nested mixtures become one order of kind "mixed". The order
itself is the business of `plan.order`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rayingest.build.description import Batching, Description
from rayingest.build.one_source import ScanResult
from rayingest.errors import ConfigError
from rayingest.plan.order.interleave import NEVER, LevelInterleave, counts_of
from rayingest.plan.order.kinds import OrderRequest, build
from rayingest.plan.order.mixed import source_order
from rayingest.plan.order.mixture import Mixture, ShuffledInterleave
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import Planner, RankSlice
from rayingest.plan.order.randomness import fold
from rayingest.plan.order.subset import Subset, brief

Weights = Mapping[int, Mapping[str, float]]
"""Weights by source, by the first step to which they apply."""

D_co = TypeVar("D_co", bound=Description, covariant=True)

_FREE_BATCHES = 16
"""Without stratified batches, the sources keep their proportions in every 16 batches."""


@dataclass(frozen=True)
class Recipe:
    """The sources of a mixture by name, each with its own recipe if it is a mixture, else None.

    `weights`, `until` and `stratified` are the options of `mix`; `seed` is None without a shuffle.
    """

    sources: Mapping[str, Recipe | None]
    weights: Weights | None
    until: str | int
    stratified: bool
    seed: int | None


@dataclass(frozen=True)
class Leaf(Generic[D_co]):
    """A source that is not a mixture, with the window that a mixture around it sets.

    `name` starts with the names of the mixtures around the source. `window` counts samples of the
    mixture `window_of`; it is None if no mixture sets it, or if the source has its own shuffle.
    """

    name: str
    dataset: D_co
    window: int | None = None
    window_of: str = ""


@dataclass(frozen=True)
class MixtureScanResult(ScanResult):
    """The scan results of the sources, by name; the manifest joins their manifests."""

    parts: Mapping[str, ScanResult] = field(default_factory=dict)

    @property
    def subset_mark(self) -> str:
        marks = {name: part.subset_mark for name, part in self.parts.items()}
        return brief("; ".join(f"{name}: {mark}" for name, mark in marks.items() if mark))


def make_mixed_planner(
    recipe: Recipe,
    leaves: Sequence[Leaf[Description]],
    batching: Batching,
    scan_result: MixtureScanResult,
    rank: int,
    world_size: int,
    uneven: bool,
) -> Planner:
    """Return a rank's planner of the mixture. Raises ConfigError."""
    assert batching.size is not None
    if batching.partial != "drop" and len(recipe.weights or ()) > 1:
        raise ConfigError(
            "weights that change at steps need full batches, but with "
            f"partial={batching.partial!r} the last batch of an epoch may not be full: pass "
            "partial='drop'"
        )
    subsets = {name: part.subset for name, part in scan_result.parts.items()}
    tree = _Tree(batching.size, {name: subset.num_samples for name, subset in subsets.items()})
    mixture, words = tree.build(recipe, "", None)
    orders = {
        leaf.name: _order(leaf, subsets[leaf.name], tree.shares, batching.size) for leaf in leaves
    }
    digest = hashlib.blake2b("; ".join(map(str, orders.values())).encode(), digest_size=8)
    request = OrderRequest(
        Subset.whole(scan_result.manifest),
        RankSlice(rank, world_size, uneven),
        {"batch": batching.size, "partial": batching.partial, "seed": recipe.seed},
        marks=scan_result.marks,
        options={
            "mixture": mixture,
            "sources": [(subsets[name], order) for name, order in orders.items()],
            "shares": [tree.shares[name] for name in orders],
            "words": f"{brief(words)}; sources {digest.hexdigest()}",
            "last_change": max(recipe.weights or (0,)) * batching.size,
        },
    )
    return build("mixed", request)


def _order(
    leaf: Leaf[Description], subset: Subset, shares: Mapping[str, float], batch: int
) -> Order:
    """Return a source's own order. Raises ConfigError."""
    share, shuffling = shares[leaf.name], leaf.dataset.shuffling
    options: dict[str, Any] = {"seed": None} if shuffling is None else dict(vars(shuffling))
    if leaf.window is not None:
        options["window"] = max(1, round(leaf.window * share / shares[leaf.window_of]))
    try:
        return source_order(subset, samples_per_step=share * batch, share=share, **options)
    except ConfigError as error:
        raise ConfigError(f"source {leaf.name!r}: {error}") from error


class _Tree:
    """Build mixtures of sources of these sizes, by name, in global batches of `batch`.

    `shares` holds the largest share of all rows that each source or mixture has at any step; the
    key of a mixture is the prefix of its sources' names.
    """

    def __init__(self, batch: int, sizes: Mapping[str, int]) -> None:
        self.shares: dict[str, float] = {"": 1.0}
        self._batch, self._sizes = batch, sizes

    def build(self, recipe: Recipe, within: str, seed: int | None) -> tuple[Mixture, str]:
        """Return the mixture, and the words that name it in a state."""
        seed = seed if recipe.seed is None else recipe.seed
        paths = {name: within + name for name in recipe.sources}
        by_size = {0: {name: self._size(path) for name, path in paths.items()}}
        counts = {
            step * self._batch: counts_of([weights[name] for name in paths])
            for step, weights in (recipe.weights or by_size).items()
        }
        parts: list[int | Mixture] = []
        inside: dict[str, str] = {}
        for place, (name, path) in enumerate(paths.items()):
            share = self.shares[within] * max(each[place] / sum(each) for each in counts.values())
            inner = recipe.sources[name]
            if inner is None:
                self.shares[path] = share
                parts.append(self._sizes[path])
            else:
                self.shares[f"{path}/"] = share
                part, inside[name] = self.build(inner, f"{path}/", seed)
                parts.append(part)
        level = LevelInterleave(counts)
        interleave = level if recipe.stratified else self._shuffle(level, within, seed)
        mixture = Mixture(interleave, parts, recipe.until)
        if mixture.rows == NEVER:
            raise ConfigError(
                f"a pass would never end: until={recipe.until!r} of a mixture of "
                f"{', '.join(paths)} is never reached, because the weights of its sources become "
                "0 before; give a number of samples, as in until=1_000_000"
            )
        return mixture, _words(recipe, counts, list(paths), inside)

    def _shuffle(self, level: LevelInterleave, within: str, seed: int | None) -> ShuffledInterleave:
        if seed is None:
            raise ConfigError("mix(stratified=False) needs .shuffle(), whose seed it uses")
        key = fold("turns", seed, word_of(within))
        return ShuffledInterleave(level, _FREE_BATCHES * self._batch, key)

    def _size(self, path: str) -> int:
        """Return the number of samples of a source, or of all sources of a mixture."""
        return sum(size for name, size in self._sizes.items() if f"{name}/".startswith(f"{path}/"))


def _words(
    recipe: Recipe,
    counts: Mapping[int, Sequence[int]],
    names: Sequence[str],
    inside: Mapping[str, str],
) -> str:
    """Return a mixture in words: counts by the row from which they apply, and inner mixtures."""
    parts = []
    for row, of in counts.items():
        words = ", ".join(f"{name} {count}" for name, count in zip(names, of, strict=True))
        parts.append(f"{words} from row {row} on" if row else words)
    free = "" if recipe.stratified else ", free"
    named = "".join(f"; {name}: ({words})" for name, words in inside.items())
    return f"{'; '.join(parts)}, until {recipe.until}{free}{named}"


def word_of(name: str) -> int:
    """Return a name as a word of 64 bits, for keys."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
