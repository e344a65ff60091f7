"""The endless order of records: steps follow each other, and ranks hold their own rows."""

import pytest

from rayingest.errors import ConfigError
from rayingest.plan.order.offsets import Offsets
from rayingest.plan.order.planner import RankSlice
from rayingest.plan.order.stream import plan, share
from rayingest.plan.protocols import ENDLESS


def test_a_step_has_the_next_rows_of_the_stream() -> None:
    """Rank 1 of 2 has rows [s G + G/2, (s + 1) G) of step s; the window is these rows alone."""
    offsets = Offsets(["a"])
    offsets.begin(0)
    planner = plan(offsets, 6, 5, RankSlice(1, 2))
    assert planner.is_endless
    assert planner.steps_in(3) == ENDLESS
    samples = planner.step_samples(0, 2)
    assert (samples.epoch, samples.step, samples.pass_number, samples.rows) == (0, 2, 0, 3)
    assert samples.ordinal.tolist() == samples.position.tolist() == [15, 16, 17]
    assert samples.block.tolist() == [offsets.block(2)] * 3
    assert samples.row.tolist() == [0, 1, 2]
    assert samples.valid.all()
    assert samples.expires.tolist() == [3, 3, 3]
    assert samples.window_begin.tolist() == [15, 15, 15]
    assert samples.window_end.tolist() == [18, 18, 18]


def test_a_rank_holds_the_rows_that_it_shares() -> None:
    """A rank without rows holds the first row of the step, and names it."""
    assert [share(2, RankSlice(rank, 2)) for rank in range(2)] == [(0, 1), (1, 2)]
    assert [share(2, RankSlice(rank, 3, True)) for rank in range(3)] == [(0, 1), (0, 1), (1, 2)]
    offsets = Offsets(["a"])
    offsets.begin(0)
    samples = plan(offsets, 2, 0, RankSlice(0, 3, uneven=True)).step_samples(0, 4)
    assert (samples.rows, samples.ordinal.tolist(), samples.row.tolist()) == (0, [8], [0])


def test_a_stream_says_what_it_is() -> None:
    """Its kind, its version and its seed; every rank reads all blocks."""
    planner = plan(Offsets(["a"]), 6, 5, RankSlice(1, 3))
    identity = planner.identity
    assert (identity["kind"], identity["version"], identity["seed"]) == ("stream", 1, 5)
    assert planner.reads_per_block() == 3
    with pytest.raises(ConfigError, match="global batch of 6 does not divide over 4 ranks"):
        plan(Offsets(["a"]), 6, 5, RankSlice(1, 4))
