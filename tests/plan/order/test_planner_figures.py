"""A planner's figures for people: the order and the steps in words, reads of a block."""

import numpy as np
import pytest

from rayingest.plan.order import mixed, packed, window
from rayingest.plan.order.interleave import LevelInterleave
from rayingest.plan.order.manifest import JoinedManifest
from rayingest.plan.order.mixture import Mixture
from rayingest.plan.order.packing import Packing
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import Planner, RankSlice, reads_per_block
from rayingest.plan.order.subset import Subset
from tests.support.plan_cases import manifest


def plain(partial: str, seed: int | None = None) -> Planner:
    """A planner of 15 samples in batches of 4, in windows of two steps if shuffled."""
    subset = Subset.whole(manifest([9, 6]))
    order = Order.resolve(subset, batch=4, partial=partial, seed=seed, window=8, lanes=2)
    return window.plan(subset, order)


def rows_of_8() -> Planner:
    """A planner of 10 samples of length 3, packed in rows of 8: 5 rows, in batches of 2."""
    subset, packing = Subset.whole(manifest([10])), Packing(8, cut=False)
    lengths = np.full(10, 3)
    order = packed.resolve(subset, lengths, packing, batch=2, partial="drop", seed=1, window=10)
    return packed.plan(subset, order, packing, lengths, RankSlice(0, 2))


def test_an_order_in_words() -> None:
    """File order, or the seed, the windows and the lanes; then the words of the kind."""
    assert plain("drop").describe() == "file order"
    words = "seed 7, windows of 8 samples (2 steps), 2 lane(s)"
    assert plain("drop", 7).describe() == words
    words = "seed 1, windows of 10 samples (2 steps), 1 lane(s), best fit at 8"
    assert rows_of_8().describe() == words


@pytest.mark.parametrize(
    ("planner", "words"),
    [
        (plain("drop"), "3 per epoch, 4 samples each; partial drop, 3 samples dropped"),
        (plain("pad"), "4 per epoch, 4 samples each; partial pad"),
        (plain("short"), "4 per epoch, 4 samples each; partial short"),
        (
            rows_of_8(),
            "2 in the first epoch, 2 packed rows each, 75.0% filled; partial drop",
        ),
    ],
    ids=["drop", "pad", "short", "packed"],
)
def test_the_steps_of_an_epoch_in_words(planner: Planner, words: str) -> None:
    """Their number, their rows, the tail, and how many samples it drops where that is always so."""
    assert planner.describe_steps() == words


@pytest.mark.parametrize(
    ("batch", "lanes", "world_size", "reads"),
    [(8, 1, 1, 1), (8, 1, 4, 4), (8, 4, 4, 1), (8, 4, 8, 2), (8, 4, 3, 1.25), (8, 4, 16, 2)],
)
def test_ranks_that_share_a_lane_read_its_blocks(
    batch: int, lanes: int, world_size: int, reads: float
) -> None:
    """Each rank with a row of a lane reads the lane's blocks; a rank without rows reads none."""
    assert reads_per_block(batch, lanes, world_size) == reads


def test_reads_of_packed_rows_and_of_a_mixture() -> None:
    """Ranks share the one lane of packed rows, and the lanes of each source of a mixture."""
    assert rows_of_8().reads_per_block() == 2
    data = [manifest([30]), manifest([10])]
    orders = [
        mixed.source_order(
            Subset.whole(one), samples_per_step=4, share=0.5, seed=3, window=4, lanes=lanes
        )
        for one, lanes in zip(data, (4, 1), strict=True)
    ]
    mixture = Mixture(LevelInterleave({0: (1, 1)}), [30, 10])
    order = mixed.resolve(mixture, orders, [0.5, 0.5], batch=8, partial="drop", seed=3)
    sources = [
        mixed.RepeatedSource(Subset.whole(one), order)
        for one, order in zip(data, orders, strict=True)
    ]
    ranks = RankSlice(0, 3, uneven=True)
    planner = mixed.plan(JoinedManifest.of(data), mixture, sources, order, ranks)
    # Sources weigh by their samples: 1 + 2/4 reads for 30, 3 (1 a rank) for 10.
    assert planner.reads_per_block() == (1.5 * 30 + 3 * 10) / 40
