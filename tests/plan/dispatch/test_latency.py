"""Remote storage costs no throughput: the real planner and dispatch, in simulated time."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from benchmarks import simulate
from rayingest.plan.order.parameters import Order
from tests.support.plan_cases import uniform, window_planner

STEPS, START, ROWS = 250, 120, 64


@functools.cache
def seconds(latency: float) -> float:
    """Return the seconds of all steps after the first `START`.

    A row takes 4 ms to decode; blocks have 2 MB and arrive at 100 MB/s.
    """
    world = replace(simulate.World(), rows=ROWS, decoders=3, step_seconds=0.0, read_latency=latency)
    data = uniform(2000, 33, world.sample_bytes)
    planner = window_planner(data, Order.resolve(data, batch=ROWS, seed=1, window=1024), 0, 1)
    return sum(simulate.Simulation(world, planner, seed=0).run(STEPS)[START:])


@pytest.mark.parametrize("latency", [0.1, 0.5])
def test_latency_costs_no_throughput(latency: float) -> None:
    """At least 95 % of the rate without latency: enough blocks are in flight for 45 MB/s."""
    assert seconds(latency) <= seconds(0.0) / 0.95
