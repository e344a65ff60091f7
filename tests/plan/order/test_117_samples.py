"""117 samples on 1 to 32 ranks: each batch size and tail is exact, or raises an error."""

from __future__ import annotations

import pytest

from rayingest.errors import ConfigError
from rayingest.plan.order.parameters import Order
from tests.support.plan_cases import manifest, window_planner

SAMPLES = manifest([50, 37, 30])


@pytest.mark.parametrize("partial", ["drop", "pad", "short"])
@pytest.mark.parametrize("rows_per_rank", [1, 4])
@pytest.mark.parametrize("world_size", range(1, 33))
def test_each_sample_once_and_equal_steps_or_a_clear_error(
    world_size: int, rows_per_rank: int, partial: str
) -> None:
    """Each in exactly one valid row but for what `drop` leaves out, which is less than a batch."""
    batch = world_size * rows_per_rank
    if partial == "drop" and batch > 117:
        with pytest.raises(
            ConfigError, match=f"117 samples are less than one global batch of {batch}"
        ):
            Order.resolve(SAMPLES, batch=batch, partial=partial, seed=3, window=64)
        return
    order = Order.resolve(SAMPLES, batch=batch, partial=partial, seed=3, window=64)
    ranks = [window_planner(SAMPLES, order, rank, world_size) for rank in range(world_size)]
    assert len({rank.steps_per_epoch for rank in ranks}) == 1
    seen = []
    for rank in ranks:
        for step in range(rank.steps_per_epoch):
            samples = rank.step_samples(0, step)
            assert partial == "short" or samples.rows == rows_per_rank
            valid = samples.valid[: samples.rows]
            seen += samples.ordinal[: samples.rows][valid].tolist()
    assert len(seen) == len(set(seen)) == (117 - 117 % batch if partial == "drop" else 117)
