"""One epoch's sequence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.plan.order.parameters import Order
from rayingest.plan.order.sequence import PassSequence
from tests.support import plan_reference
from tests.support.plan_cases import order, rules


def located(data_counts: tuple[int, ...], made: Order, epoch: int) -> list[tuple[int, int]]:
    block, row = PassSequence(np.array(data_counts, np.int64), made.seed, epoch).locate(
        np.arange(made.samples)
    )
    return list(zip(block.tolist(), row.tolist(), strict=True))


@settings(max_examples=80)
@given(rules(), st.integers(0, 5))
def test_the_sequence_is_all_samples_by_the_rules(case: plan_reference.Rules, epoch: int) -> None:
    """Every place holds the sample that the rules put there; so each sample has one place."""
    places = located(case.counts, order(case), epoch)
    assert places == plan_reference.sequence(case, epoch)
    assert sorted(places) == [
        (block, row) for block, count in enumerate(case.counts) for row in range(count)
    ]


@pytest.mark.parametrize(
    "counts", [(1,) * 300 + (100_000,), (100_000, *(0, 1) * 100, 5_000), (0, 7, 0, 0, 3)]
)
def test_blocks_of_very_unequal_sizes(counts: tuple[int, ...]) -> None:
    """Many blocks where one of the mean size would be, and blocks that hold nothing."""
    made = Order(sum(counts), 10, "drop", 5, 1, 1)
    for epoch in range(3):
        places = located(counts, made, epoch)
        assert sorted(places) == [
            (block, row) for block, count in enumerate(counts) for row in range(count)
        ]
        assert len(
            [at for at in range(1, len(places)) if places[at][0] != places[at - 1][0]]
        ) <= len(counts)


def test_file_order_is_the_same_in_every_epoch() -> None:
    """Without a seed nothing is permuted and nothing rotated."""
    made = Order(9, 3, "drop", None, 1, 1)
    for epoch in (0, 1, 7):
        assert located((4, 2, 3), made, epoch) == [
            (b, r) for b, count in enumerate((4, 2, 3)) for r in range(count)
        ]


@pytest.mark.parametrize("seed", [None, 3])
def test_blocks_without_samples_are_passed_over(seed: int | None) -> None:
    """A pass over one sample in nine blocks has that sample; an empty block has no position."""
    samples = np.zeros(9, np.int64)
    samples[4] = 1
    block, nth = PassSequence(samples, seed, 0).locate(np.array([0]))
    assert (block.tolist(), nth.tolist()) == ([4], [0])


def test_one_block_still_begins_elsewhere_in_every_epoch() -> None:
    """Rotation moves what permuting few blocks leaves in place."""
    made = Order(1_000, 10, "drop", 3, 1, 1)
    assert len({located((1_000,), made, epoch)[0] for epoch in range(20)}) > 15


def test_seeds_and_epochs_have_their_own_sequences() -> None:
    """Another seed, or another epoch, is another order of blocks."""
    counts = (1,) * 50
    made = [
        located(counts, Order(50, 5, "drop", seed, 1, 1), epoch)
        for seed in (0, 1, -1)
        for epoch in (0, 1, 2**40)
    ]
    assert len({tuple(places) for places in made}) == 9


def test_every_place_is_equally_likely_for_a_sample() -> None:
    """Over 4,000 epochs, the first sample of unequal blocks comes up evenly over all places."""
    counts = np.zeros(20, np.int64)
    made = Order(20, 5, "drop", 11, 1, 1)
    for epoch in range(4_000):
        counts[located((13, 1, 4, 2), made, epoch).index((0, 0))] += 1
    assert abs(((counts - 200.0) ** 2 / 200).sum() - 19) < 5 * 38**0.5
