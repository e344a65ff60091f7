"""Stragglers: overdue is what takes much longer than its like."""

from __future__ import annotations

from rayingest.plan.dispatch.stragglers import Stragglers


def seen(*seconds: float) -> Stragglers:
    """After tasks that took so long."""
    late = Stragglers(factor=4.0, least=1.0, unknown=10.0)
    for task, took in enumerate(seconds):
        late.begin(-task, 0.0)
        late.end(-task, took)
    return late


def test_before_enough_is_known_only_the_fixed_limit_counts():
    """Ten seconds."""
    late = seen(0.1)
    late.begin(1, 0.0)
    assert late.overdue(9.9) == []
    assert late.overdue(10.1) == [1]


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


def test_what_failed_does_not_count():
    """A failure at once must not make the others late."""
    late = seen(*[2.0] * 20)
    for task in range(100, 300):
        late.begin(task, 0.0)
        late.end(task, 0.0, done=False)
    late.begin(1, 0.0)
    assert late.overdue(7.0) == []
