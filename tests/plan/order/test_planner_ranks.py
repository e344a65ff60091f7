"""Ranks' slices of the global batch."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayingest.errors import ConfigError
from rayingest.plan.order.planner import bounds, check_ranks


def test_a_world_size_that_does_not_divide_names_those_that_do() -> None:
    """And the option that allows it."""
    with pytest.raises(
        ConfigError, match=r"global batch of 48 .* 5 ranks.*: 1, 2, 3, 4, 6, 8; .*uneven=True"
    ):
        check_ranks(48, 0, 5, False)
    with pytest.raises(ConfigError, match=r"global batch of 4 .* 8 ranks"):
        check_ranks(4, 0, 8, False)
    # Only world sizes up to 4,096 are tried.
    with pytest.raises(ConfigError, match=r": 128, 256, 512, 1024, 2048, 4096; or"):
        check_ranks(1 << 14, 0, 5000, False)


def test_uneven_takes_any_world_size() -> None:
    """More ranks than rows, too."""
    check_ranks(48, 4, 5, True)
    check_ranks(4, 7, 8, True)
    check_ranks(48, 7, 8, False)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 4), (4, 4), (0, 0), (0, -1)])
def test_a_rank_outside_its_world_is_refused(rank: int, world_size: int) -> None:
    """Whether uneven or not, with both numbers named."""
    for uneven in (False, True):
        with pytest.raises(ConfigError, match=f"rank {rank} of world size {world_size}"):
            check_ranks(12, rank, world_size, uneven)


@given(st.integers(0, 10**12), st.integers(1, 200))
def test_bounds_tile_the_rows(rows: int, world_size: int) -> None:
    """Ranks in order, no gap, no overlap, sizes that differ by at most one."""
    slices = [bounds(rows, rank, world_size) for rank in range(world_size)]
    assert slices[0][0] == 0
    assert slices[-1][1] == rows
    assert all(a[1] == b[0] for a, b in pairwise(slices))
    sizes = {end - begin for begin, end in slices}
    assert max(sizes) - min(sizes) <= 1
