"""The orders that samplers give, without torch."""

from __future__ import annotations

import pytest

from rayingest.errors import ConfigError
from rayingest.plan.order.kinds import OrderRequest, build
from rayingest.plan.order.planner import ALONE, Planner, RankSlice
from rayingest.plan.order.sampler import Sampling
from rayingest.plan.order.subset import Subset
from tests.support.plan_cases import manifest, same

DATA = Subset.whole(manifest([12]))


def planner(sampling: Sampling, ranks: RankSlice = ALONE, **how: object) -> Planner:
    parameters = {"batch": 4, "partial": "drop"}
    return build(
        "sampler", OrderRequest(DATA, ranks, parameters, options={"sampling": sampling}, **how)
    )


def test_steps_are_as_long_as_the_sampler_says() -> None:
    """Steps of 3, 1 and 4; all blocks are needed until the last of them, on every rank."""
    sampling = Sampling([[5, 6, 7], [1], [11, 0, 2, 3]], in_batches=True)
    alone = planner(sampling)
    steps = [alone.step_samples(0, step) for step in range(3)]
    assert alone.steps_in(0) == 3
    assert alone.order.batch == 4
    assert [step.ordinal.tolist() for step in steps] == [[5, 6, 7], [1], [11, 0, 2, 3]]
    assert [set(step.expires.tolist()) for step in steps] == [{3}, {3}, {3}]
    assert [step.rows for step in steps] == [3, 1, 4]
    assert {(*step.window_begin.tolist(), *step.window_end.tolist()) for step in steps[1:2]} == {
        (0, 8)
    }
    halves = [planner(sampling, RankSlice(rank, 2)) for rank in range(2)]
    rows = [[half.step_samples(0, step).rows for step in range(3)] for half in halves]
    assert rows == [[1, 0, 2], [2, 1, 2]]
    assert halves[0].step_samples(0, 1).ordinal.tolist() == [1]


def test_samples_in_steps_of_one_size_may_be_planned_together() -> None:
    """A run of steps equals its single steps; a repeated index is another row of the data."""
    sampling = Sampling([3, 3, 1, 0, 2, 3, 5, 4, 9])
    alone = planner(sampling)
    run = alone.run(0, 0, 9)
    assert len(run) == 2
    assert all(same(one, alone.step_samples(0, one.step)) for one in run)
    assert run[0].row.tolist() == [3, 15, 1, 0]
    assert run[1].row.tolist() == [2, 27, 5, 4]
    assert run[0].expires.tolist() == [2] * 4


def test_another_sampler_is_another_order() -> None:
    """The first pass marks it, and where its steps begin."""
    marks = {
        planner(sampling).identity["sampler"]
        for sampling in (
            Sampling([0, 1, 2, 3]),
            Sampling([1, 0, 2, 3]),
            Sampling([[0, 1], [2, 3]], in_batches=True),
            Sampling([[0, 1, 2], [3]], in_batches=True),
        )
    }
    assert len(marks) == 4
    assert all(len(mark) == 16 for mark in marks)


def test_less_than_a_batch_is_refused() -> None:
    """With the number of samples, and what works."""
    with pytest.raises(ConfigError, match=r"gives 3 samples, less than one .* of 4: .*'pad'"):
        planner(Sampling([0, 1, 2]))
    with pytest.raises(ConfigError, match="gives no indices"):
        planner(Sampling([]))
