"""Planning a million blocks, ten to the nine samples."""

import tracemalloc

import numpy as np
import pytest

from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.parameters import Order
from tests.support.plan_cases import uniform, window_planner


@pytest.fixture(scope="module")
def data() -> Manifest:
    return uniform(10**6, 1_000, 60_000)


def test_an_epoch_is_planned_within_300_mb(data: Manifest) -> None:
    """The peak over the manifest itself; what stays is two arrays of a block's number, an epoch."""
    tracemalloc.start()
    try:
        planner = window_planner(data, Order.resolve(data, batch=2_048, seed=1))
        planner.step_samples(0, 0)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300 * 10**6
    assert kept < 60 * 10**6


def test_a_far_step_is_a_step_like_any(data: Manifest) -> None:
    """The last step of a far epoch, planned first, holds 2,048 samples that exist."""
    planner = window_planner(data, Order.resolve(data, batch=2_048, seed=1))
    samples = planner.step_samples(10**9, planner.steps_per_epoch - 1)
    assert len(np.unique(samples.ordinal)) == 2_048
    assert samples.ordinal.max() < data.num_samples


def test_4096_ranks_share_a_step(data: Manifest) -> None:
    """Each of a few of 4,096 ranks plans its 16 rows alone; they are the one rank's."""
    order = Order.resolve(data, batch=65_536, seed=1)
    whole = window_planner(data, order).step_samples(0, 5).ordinal
    for rank in (0, 1, 2_047, 4_095):
        assert np.array_equal(
            window_planner(data, order, rank, 4_096).step_samples(0, 5).ordinal,
            whole[rank * 16 : rank * 16 + 16],
        )
