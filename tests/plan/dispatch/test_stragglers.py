"""Stragglers: overdue is what takes much longer than its like."""

from __future__ import annotations

from rayingest.plan.dispatch.stragglers import Stragglers


def seen(*seconds: float) -> Stragglers:
    """Return a watch after tasks of these durations."""
    late = Stragglers(factor=4.0, least=1.0, unknown=10.0)
    for task, took in enumerate(seconds):
        late.begin(-task, 64.0)
        late.end(-task, 64.0 + took)
    return late


def is_overdue(late: Stragglers, after: float) -> bool:
    """Return whether a task is overdue that began this many seconds ago."""
    late.begin(1, 0.0)
    overdue = late.overdue(after)
    late.end(1, after, done=False)
    return overdue == [1]


def test_before_enough_is_known_only_the_fixed_limit_counts():
    """A task may take just 10 seconds; the eighth duration replaces this limit."""
    late = seen(*[2.0] * 7)
    assert not is_overdue(late, 10.0)
    assert is_overdue(late, 10.25)
    late = seen(*[2.0] * 8)
    assert not is_overdue(late, 8.0)
    assert is_overdue(late, 8.25)


def test_the_limit_follows_what_tasks_took_and_has_a_floor():
    """Four times the usual, or a second."""
    for took, limit in ((0.01, 1.0), (2.0, 8.0)):
        late = seen(*[took] * 20)
        late.begin(1, 100.0)
        late.begin(2, 101.0)
        assert late.overdue(100.0 + limit - 0.1) == []
        assert late.overdue(100.0 + limit + 0.1) == [1]
        late.end(1, 100.0 + limit + 1)
        assert late.overdue(102.0 + limit) == [2]


def test_only_the_last_128_durations_count():
    """116 of them may be short and 12 long; with one more that is long, a tenth is."""
    assert is_overdue(seen(*[2.0] * 200, *[0.01] * 116), 1.25)
    assert not is_overdue(seen(*[2.0] * 200, *[0.01] * 115), 1.25)


def test_what_failed_does_not_count():
    """A failure at once must not make the others late."""
    late = seen(*[2.0] * 20)
    for task in range(100, 300):
        late.begin(task, 0.0)
        late.end(task, 0.0, done=False)
    late.begin(1, 0.0)
    assert late.overdue(7.0) == []


def test_a_task_that_never_began_ends_without_effect():
    """Its duration is unknown."""
    late = seen(*[2.0] * 7)
    late.end(99, 1.0)
    assert not is_overdue(late, 10.0)


def test_tasks_that_began_before_a_time_are_found_the_oldest_first():
    """One that began just then is not among them."""
    late = seen()
    for task, begun in ((5, 1.0), (3, 2.0), (4, 3.0)):
        late.begin(task, begun)
    assert late.begun_before(3.0) == [5, 3]
    assert late.begun_before(3.5) == [5, 3, 4]
