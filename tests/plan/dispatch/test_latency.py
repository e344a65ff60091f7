"""Storage far away: real planner and dispatch in simulated time, where no other work of the machine counts."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from benchmarks import simulate
from rayingest.plan.order.order import Order
from tests.support.plan_cases import uniform, window_planner

STEPS, START, ROWS = 250, 120, 64


@functools.cache
def seconds(latency: float) -> float:
    """What steps after the start take together, decoded at 4 ms a row, in blocks of 2 MB that come at 100 MB/s."""
    world = replace(simulate.World(), rows=ROWS, decoders=3, step_seconds=0.0, read_latency=latency)
    data = uniform(2000, 33, world.sample_bytes)
    planner = window_planner(data, Order.resolve(data, batch=ROWS, seed=1, window=1024), 0, 1)
    return sum(simulate.Simulation(world, planner, seed=0).run(STEPS)[START:])


@pytest.mark.parametrize("latency", [0.1, 0.5])
def test_latency_costs_no_throughput(latency: float) -> None:
    """As many blocks are under way as the rate of 45 MB/s asks for: 95 % of that without latency."""
    assert seconds(latency) <= seconds(0.0) / 0.95
