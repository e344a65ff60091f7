"""The only module of the golden tests that knows the internals of the package.

Loaders compute the golden values that a loader shows. This module holds the rest: keyed hashes,
orders of data too large for a test to write, and the planners of each kind. A refactor edits this
module and no golden file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import rayingest
from rayingest.plan.order import mixed, packed, randomness, weighted, window
from rayingest.plan.order.interleave import LevelInterleave, counts_of
from rayingest.plan.order.manifest import JoinedManifest, Manifest, ShardBlocks
from rayingest.plan.order.mixed import RepeatedSource, source_order
from rayingest.plan.order.mixture import Mixture, ShuffledInterleave
from rayingest.plan.order.packing import Packing
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import RankSlice
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import Subset
from rayingest.plan.order.token_budget import Budget
from rayingest.plan.order.weighted import Resampling, Weights
from rayingest.transforms.images import RandomResizedCrop

mix64, fold, hashes, permutation, permute = (
    randomness.mix64,
    randomness.fold,
    randomness.hashes,
    randomness.permutation,
    randomness.permute,
)
generator = randomness.generator

Data = Manifest
"""Blocks of samples, as the index of a data set gives them."""


def blocks_of(counts: Sequence[int]) -> Data:
    """Return one shard of blocks with these numbers of samples, each of 100 bytes."""
    samples = np.array(counts, np.int64)
    ends = np.cumsum(samples * 100)
    blocks = ShardBlocks(ends - samples * 100, ends, samples, samples * 100)
    return Manifest.join("mem://", ["a"], [int(ends[-1])], [""], [blocks])


def equal_blocks(blocks: int, samples_each: int, bytes_each: int) -> Data:
    """Return one shard of equal blocks; `bytes_each` is the size of one sample."""
    begin = np.arange(blocks, dtype=np.int64)
    samples = np.full(blocks, samples_each, np.int64)
    shard = ShardBlocks(begin, begin + 1, samples, samples * bytes_each)
    return Manifest.join("mem://", ["a"], [blocks], [""], [shard])


def fingerprint(
    base: str, paths: list[str], sizes: list[int], marks: list[str], shards: list[list[list[int]]]
) -> str:
    """Return an index's fingerprint; a shard is its blocks' begins, ends, samples and bytes."""
    return Manifest.join(
        base, paths, sizes, marks, [ShardBlocks(*np.array(shard)) for shard in shards]
    ).fingerprint


def joint_fingerprint(parts: list[Data]) -> str:
    """Return the fingerprint of several sources' indexes together."""
    return JoinedManifest.of(parts).fingerprint


def crop_box(
    scale: tuple[float, float],
    ratio: tuple[float, float],
    height: int,
    width: int,
    rng: np.random.Generator,
) -> tuple[int, int, int, int]:
    """Return the part of an image that a `RandomResizedCrop` takes: left, top, right and bottom."""
    return RandomResizedCrop(8, scale, ratio).box(height, width, rng)


class WindowOrder:
    """Each sample once an epoch: shuffled in windows, or in file order."""

    def __init__(self, data: Data, *, lengths: np.ndarray | None = None, **how: Any) -> None:
        self._order = Order.resolve(data, **how)
        self._planner = window.plan(Subset.whole(data), self._order, lengths=lengths)

    @property
    def parameters(self) -> dict[str, Any]:
        """`samples`, `batch`, `partial`, `seed`, `lanes` and `window_steps`, defaults resolved."""
        names = ("samples", "batch", "partial", "seed", "lanes", "window_steps")
        return {name: getattr(self._order, name) for name in names}

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self._planner.steps_per_epoch

    def ordinals(self, epoch: int, step: int) -> list[int]:
        """Return the samples of a step; a repeat that fills up the batch is -1 - ordinal."""
        return _signed(self._planner.step_samples(epoch, step))

    def where(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the block, the row in the block and the ordinal of each sample of a step."""
        samples = self._planner.step_samples(epoch, step)
        return samples.block, samples.row, samples.ordinal


class PackedOrder:
    """Samples of these lengths in packed rows of `capacity` values."""

    def __init__(
        self, data: Data, lengths: np.ndarray, capacity: int, *, cut: bool, **how: Any
    ) -> None:
        subset, packing = Subset.whole(data), Packing(capacity, cut)
        order = packed.resolve(subset, lengths, packing, **how)
        self._planner = packed.plan(subset, order, packing, lengths)
        self.window = order.window

    def steps(self, epoch: int) -> int:
        """Return the steps of an epoch."""
        return self._planner.steps_in(epoch)

    def pieces(
        self, epoch: int, step: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the row, the ordinal, the begin and the end in the sample of each piece of a step.

        The ordinals of rows that fill up the batch are -1 - ordinal.
        """
        samples = self._planner.step_samples(epoch, step)
        layout = samples.layout
        assert layout is not None
        ordinal = samples.ordinal[layout.sample]
        ordinal = np.where(layout.valid[layout.row], ordinal, -1 - ordinal)
        return layout.row, ordinal, layout.begin, layout.end


class BudgetedOrder:
    """Batches that hold at most `tokens` values a rank, padded to a multiple of `multiple`."""

    def __init__(
        self, data: Data, lengths: np.ndarray, tokens: int, ranks: int, multiple: int, **how: Any
    ) -> None:
        subset, budget = Subset.whole(data), Budget(tokens, ranks, multiple)
        order = packed.resolve(subset, lengths, budget, batch=ranks, **how)
        self._planners = [
            packed.plan(subset, order, budget, lengths, RankSlice(rank, ranks))
            for rank in range(ranks)
        ]
        self.window = order.window

    def steps(self, epoch: int) -> int:
        """Return the steps of an epoch."""
        return self._planners[0].steps_in(epoch)

    def ordinals(self, epoch: int, step: int) -> list[list[int]]:
        """Return the samples of a step, by rank."""
        return [planner.step_samples(epoch, step).ordinal.tolist() for planner in self._planners]


class MixedOrderOf:
    """Sources in turn, all with one seed and window and about an equal share of the rows."""

    def __init__(
        self,
        parts: list[Data],
        counts: tuple[int, ...],
        seed: int | None,
        *,
        batch: int,
        partial: str,
        until: str | int,
        window: int | None = None,
    ) -> None:
        share = 1 / 3
        views, how = (
            [Subset.whole(part) for part in parts],
            {"seed": seed, "window": window, "lanes": None},
        )
        orders = [
            source_order(view, samples_per_step=batch / 3, share=share, **how) for view in views
        ]
        mixture = Mixture(LevelInterleave({0: counts}), [view.num_samples for view in views], until)
        shares = [share] * len(parts)
        order = mixed.resolve(mixture, orders, shares, batch=batch, partial=partial, seed=seed)
        sources = list(map(RepeatedSource, views, orders))
        self._planner = mixed.plan(JoinedManifest.of(parts), mixture, sources, order)
        self.samples = order.samples

    def steps(self, epoch: int) -> int:
        """Return the steps of an epoch."""
        return self._planner.steps_in(epoch)

    def rows(self, epoch: int, step: int) -> list[list[int]]:
        """Return [source, pass, ordinal] of each row; a repeat's ordinal is -1 - ordinal."""
        samples = self._planner.step_samples(epoch, step)
        assert samples.source is not None
        assert samples.passes is not None
        ordinal = np.where(samples.valid, samples.ordinal, -1 - samples.ordinal)
        return np.stack([samples.source, samples.passes, ordinal], axis=1)[: samples.rows].tolist()

    def where(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the source, the pass, the block and the row in the block of each row of a step."""
        samples = self._planner.step_samples(epoch, step)
        assert samples.source is not None
        assert samples.passes is not None
        return samples.source, samples.passes, samples.block, samples.row


def level_turns(
    counts: dict[int, tuple[int, ...]], first: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return of each row from `first` to `end` the source, and its number in that source.

    The sources take turns by counts; each entry of `counts` holds from its row on.
    """
    return LevelInterleave(counts).at(first, end)


def shuffled_turns(
    counts: dict[int, tuple[int, ...]], stretch: int, key: int, first: int, end: int
) -> np.ndarray:
    """Return `level_turns` in an order drawn anew in every `stretch` rows."""
    return ShuffledInterleave(LevelInterleave(counts), stretch, key).at(first, end)[0]


def counts_of_weights(weights: list[float]) -> tuple[int, ...]:
    """Return whole numbers in the proportion of these weights."""
    return counts_of(weights)


class WeightedOrder:
    """Draws by weight, in strata where a stratum is given for each sample."""

    def __init__(
        self,
        data: Data,
        weights: np.ndarray,
        stratum: np.ndarray | None,
        draws: int | None,
        **how: Any,
    ) -> None:
        drawn = Resampling.of(Subset.whole(data), Weights(weights, stratum), draws)
        self._planner = weighted.plan(drawn, Order.resolve(drawn, **how))

    def ordinals(self, epoch: int, step: int) -> list[int]:
        """Return the samples of a step; a repeat that fills up the batch is -1 - ordinal."""
        return _signed(self._planner.step_samples(epoch, step))

    def passes(self, epoch: int, step: int) -> np.ndarray:
        """Return which pass's random numbers each row of a step has."""
        passes = self._planner.step_samples(epoch, step).passes
        assert passes is not None
        return passes


def _signed(samples: StepSamples) -> list[int]:
    return np.where(samples.valid, samples.ordinal, -1 - samples.ordinal)[: samples.rows].tolist()


def domain_tags() -> set[str]:
    """Return the domain tags of all keys in the package, from calls of `fold`.

    Raises AssertionError for a use of `fold` that hides the tag from this scan.
    """
    package = Path(rayingest.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        calls = [node for node in nodes if isinstance(node, ast.Call) and _is_fold(node.func)]
        tags = [call.args[0] for call in calls]
        hidden: list[ast.AST] = [tag for tag in tags if not isinstance(tag, ast.Constant)]
        called = [call.func for call in calls]
        hidden += [node for node in nodes if _is_fold(node) and node not in called]
        hidden += [
            node
            for node in nodes
            if isinstance(node, ast.alias) and node.name == "fold" and node.asname
        ]
        lines = [getattr(node, "lineno", 0) for node in hidden]
        assert not lines, f"{path}:{lines[0]}: call fold with its tag written out"
        found.update(tag.value for tag in tags if isinstance(tag, ast.Constant))
    return found


def _is_fold(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "fold") or (
        isinstance(node, ast.Attribute) and node.attr == "fold"
    )


@contextmanager
def changed_tag(tag: str) -> Iterator[None]:
    """Inside, keys of this domain are those of another domain."""
    original = randomness._tag
    original.cache_clear()
    randomness._tag = lambda domain: original(f"{domain}, changed" if domain == tag else domain)
    try:
        yield
    finally:
        randomness._tag = original
        original.cache_clear()
