"""Workers have slots, and tasks take them."""

from __future__ import annotations

import pytest

from rayingest.plan.dispatch.workers import Workers
from tests.support.dispatch_script import make_chunk


def joined(*workers: tuple[str, str, int]) -> Workers:
    """Return workers of these names, roles and slots."""
    found = Workers()
    for worker in workers:
        found.join(*worker)
    return found


def test_slots_are_counted_by_role() -> None:
    """A worker that is lost takes its slots along."""
    workers = joined(("r", "reader", 2), ("d", "decoder", 3), ("e", "decoder", 4))
    assert (workers.slots("reader"), workers.slots("decoder")) == (2, 7)
    assert workers.lose("e") == []
    assert (workers.slots("reader"), workers.slots("decoder")) == (2, 3)
    workers.lose("r")
    assert workers.slots("reader") == 0
    workers.validate()


def test_a_task_takes_slots_and_its_charges_until_it_ends() -> None:
    """Tasks are numbered from 0; one that does not run ends without effect."""
    workers = joined(("r", "reader", 5))
    worker = workers.workers["r"]
    assert (worker.busy, worker.charge) == (0, 0)
    first = workers.begin(worker, (10, 1), blocks=(7, 8))
    second = workers.begin(worker, (100,), blocks=(7,), slots=3)
    assert (first.number, second.number, first.slots, first.hedged) == (0, 1, 1, False)
    assert (worker.busy, worker.charge) == (4, 111)
    assert workers.reading() == [7, 8, 7]
    workers.validate()
    assert workers.end(0) is first
    assert (worker.busy, worker.charge) == (3, 100)
    assert workers.end(0) is None
    assert workers.end(1) is second
    assert (worker.busy, worker.charge) == (0, 0)
    assert workers.begin(worker, (1,), blocks=(9,)).number == 2


def test_a_lost_worker_takes_its_own_tasks_along() -> None:
    """They are returned in the order in which they began; an unknown worker has none."""
    workers = joined(("r", "reader", 9), ("q", "reader", 9))
    r, q = workers.workers["r"], workers.workers["q"]
    tasks = [workers.begin(worker, (1,), blocks=(7,)) for worker in (r, q, r)]
    assert workers.lose("r") == [tasks[0], tasks[2]]
    assert workers.tasks == {1: tasks[1]}
    assert workers.lose("r") == []
    workers.validate()


def test_the_least_busy_worker_is_free_first() -> None:
    """The share of busy slots counts; of two that are equal, the one that joined first."""
    workers = joined(("d", "decoder", 2), ("e", "decoder", 4), ("r", "reader", 1))
    d, e, r = workers.workers.values()
    assert workers.free("decoder") is d
    workers.begin(d, (1,), chunks=(make_chunk(0, 0),))
    assert workers.free("decoder") is e
    workers.begin(e, (1,), chunks=(make_chunk(1, 0),))
    assert workers.free("decoder") is e
    assert workers.free("decoder", avoid=e) is d
    assert workers.free("reader", avoid=r) is r
    workers.begin(r, (1,), blocks=(0,))
    assert workers.free("reader") is None
    assert workers.free("reader", avoid=d) is None


def test_the_reader_of_the_last_read_reads_on() -> None:
    """Another one does where it has no free slot, or is gone; decodes do not count."""
    workers = joined(("r", "reader", 4), ("q", "reader", 2), ("d", "decoder", 1))
    r, q, d = workers.workers.values()
    assert workers.same_reader() is r
    workers.begin(q, (1,), blocks=(0,))
    workers.begin(d, (1,), chunks=(make_chunk(0, 0),))
    assert workers.same_reader() is q
    workers.begin(q, (1,), blocks=(1,))
    assert workers.same_reader() is r
    workers.end(0)
    assert workers.same_reader() is q
    workers.lose("q")
    assert workers.same_reader() is r


def test_invariants_of_workers_are_checked() -> None:
    """A worker that is too busy or charged wrongly is found, and so are wrong slots."""
    for field, value in (("busy", 2), ("charge", 3), ("slots", 5)):
        workers = joined(("d", "decoder", 1))
        worker = workers.workers["d"]
        workers.begin(worker, (1,), chunks=(make_chunk(0, 0),))
        setattr(worker, field, value)
        with pytest.raises(AssertionError):
            workers.validate()
