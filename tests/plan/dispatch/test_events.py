"""Events and commands say no more than they are given."""

from __future__ import annotations

import numpy as np

from rayingest.plan.dispatch import events as ev


def test_only_a_worker_without_another_cause_blames_its_task() -> None:
    """A worker that ran out of memory costs a try, but blames no sample."""
    blames = {failure.name for failure in ev.WorkerFailure if failure.blames_task}
    counts = {failure.name for failure in ev.WorkerFailure if failure.counts_as_try}
    assert blames == {"CRASHED", "TIMED_OUT"}
    assert counts == {"CRASHED", "TIMED_OUT", "OUT_OF_MEMORY"}


def test_fields_that_are_not_given_say_nothing() -> None:
    """A step costs its rows, a part is whole, a delivery has no row at fault."""
    work = ev.StepWork(np.zeros(3, np.int64), np.ones(3, np.int64))
    assert (len(work), work.cost, work.deadly) == (3, None, ())
    assert ev.PartDone(1) == ev.PartDone(1, error=None, bad=(), left_out=False)
    assert ev.ReadDone(0, (1,)).left_out == ()
    assert ev.Deliver(0, ()).row == -1
    assert ev.Decode(0, "d", (), (), 1).suspect is False
    assert (ev.Read(0, "r", (), 1).step, ev.Fail("", ()).row) == (None, None)
