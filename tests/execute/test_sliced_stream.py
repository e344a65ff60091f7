"""Slices of blocks: the plan's samples, in few reads, where a window exceeds the budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import simulate
from rayingest.execute.sliced_stream import SlicedStream
from rayingest.execute.work import Work, take_rows
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import Planner
from tests.support.plan_cases import manifest, uniform, window_planner


def sliced(planner: Planner, run_steps: int, keep_runs: int = 99) -> SlicedStream:
    """Return a stream in slices, without any work."""
    work = cast("Work", None)
    return SlicedStream(planner, work, False, planner.manifest, run_steps, keep_runs)


def planned(counts: list[int], batch: int, **order: Any) -> Planner:
    """Return the planner of one rank, whose window is all of the data."""
    data = manifest(counts)
    return window_planner(data, Order.resolve(data, batch=batch, seed=1, window=1000, **order))


@pytest.mark.parametrize("run_steps", [1, 3, 100])
def test_slices_give_the_samples_of_the_plan(run_steps: int) -> None:
    """The row of a slice is that of the block; all other facts are as planned."""
    planner = planned([7, 1, 30, 12], 5)
    stream = sliced(planner, run_steps)
    steps = [*stream.steps(0, 2, 2)]
    assert len(steps) == 8 + 10
    for samples in steps:
        own = planner.step_samples(samples.epoch, samples.step)
        rows = [
            stream.spans([block])[0].rows[row]
            for block, row in zip(samples.block.tolist(), samples.row.tolist(), strict=True)
        ]
        assert rows == own.row.tolist()
        assert (samples.block % 4).tolist() == own.block.tolist()
        assert samples.ordinal.tolist() == own.ordinal.tolist()
        assert samples.epoch == own.epoch
        for block in samples.block.tolist():
            assert stream.location(block) == ("mem://a", stream.manifest.begin[block % 4])


def test_a_run_reads_no_block_twice_and_no_row_that_it_does_not_need() -> None:
    """Its slices expire at its end; reads of a block in another run of the pass are counted."""
    stream = sliced(planned([10, 10, 10], 5), run_steps=3)
    steps = [*stream.steps(0, 0, 1)]
    assert [set(samples.expires.tolist()) for samples in steps] == [{3}] * 3 + [{6}] * 3
    for first, run in enumerate((steps[:3], steps[3:]), 1):
        numbers = {number for samples in run for number in samples.block.tolist()}
        assert {number // 3 for number in numbers} == {first}
        spans = stream.spans(sorted(numbers))
        assert sum(len(span.rows) for span in spans) == 15
        assert all(np.all(np.diff(span.rows) > 0) for span in spans)
    assert stream.blocks_reread == 3
    first_run = [*stream.steps(1, 0, 2)][:3]
    stream.spans({number for samples in first_run for number in samples.block.tolist()})
    assert stream.blocks_reread == 3


def test_the_size_of_a_slice_is_that_of_its_rows() -> None:
    """With the overheads; a slice that is forgotten has no rows."""
    stream = sliced(planned([10, 10, 10], 5), run_steps=1, keep_runs=2)
    sizes = stream.sizes(3, 50)
    steps = [*stream.steps(0, 0, 1)]
    for number in np.unique(steps[-1].block).tolist():
        rows = int(np.sum(steps[-1].block == number))
        assert sizes[number] == rows * (100 + 3) + 50
    forgotten = int(steps[0].block[0])
    assert sizes[forgotten] == 50
    assert len(stream.spans([forgotten])[0].rows) == 0


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"a", b"b", b"c"]),
        pa.array(["a", None, "c"], pa.string_view()),
        pa.array([[1], [], [2, 3]]),
        pa.array([{"x": 1}, {"x": 2}, None]),
        pa.RunEndEncodedArray.from_arrays([1, 3], [5, 6]),
    ],
    ids=lambda column: str(column.type),
)
def test_rows_of_any_type_can_be_taken(column: pa.Array) -> None:
    """With the schema and its metadata."""
    table = pa.table({"x": column}).replace_schema_metadata({b"shard": b"a"})
    taken = take_rows(table, np.array([0, 2]))
    assert taken.schema.equals(table.schema, check_metadata=True)
    assert taken.to_pylist() == [table.to_pylist()[row] for row in (0, 2)]
    assert take_rows(table, np.zeros(0, np.int64)).num_rows == 0


def samples_per_second(run_steps: int | None) -> float:
    """Return the rate of 64 samples of 50 kB a step, in a window of 600 MB, in 120 MB.

    Blocks have 2 MB; the object store frees bytes 2 s after their release.
    """
    rows, budget = 64, 120 * 10**6
    world = replace(
        simulate.World(),
        rows=rows,
        sample_bytes=50_000,
        row_bytes=50_000,
        step_seconds=0.0,
        row_seconds=0.0005,
        read_latency=0.01,
        read_bandwidth=1e9,
        max_bytes=budget,
    )
    data = uniform(300, 40, world.sample_bytes)
    planner = window_planner(data, Order.resolve(data, batch=rows, seed=1, window=12_000))
    slices = None if run_steps is None else sliced(planner, run_steps)
    simulation = simulate.Simulation(world, planner, 0, slices)
    steps = 20 if slices is None else 100
    waits = simulation.run(steps)
    assert simulation.peak <= budget
    return steps * rows / sum(waits)


def test_a_window_far_beyond_the_budget_does_not_crawl() -> None:
    """In runs of a third of the budget the stream is many times as fast as by whole blocks."""
    assert samples_per_second(run_steps=12) > 20 * samples_per_second(None)
