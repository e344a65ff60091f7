"""Histogram as counts: where each is counted, and what the counts say."""

from __future__ import annotations

import pytest

from rayingest.plan.figures.histogram import BOUNDS, COARSE, Histogram, grown, quantile, together


def test_each_is_counted_once_at_the_least_bound_that_holds_it() -> None:
    """A bound holds what took exactly as long; behind the last is the rest."""
    seen = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 50.0, 51.0):
        seen.add(seconds)
    assert seen.counts[:2] == [2, 1]
    assert seen.counts[-2:] == [1, 1]
    assert list(BOUNDS) == sorted(BOUNDS)
    assert [f"{BOUNDS[number]:g}" for number in COARSE[:4]] == ["0.001", "0.002", "0.005", "0.01"]
    assert BOUNDS[COARSE[-1]] == BOUNDS[-1] == 50


def test_quantiles_are_those_of_the_values_to_the_bounds() -> None:
    """Between the bounds around the true one; None of nothing."""
    seen = Histogram()
    for i in range(1000):
        seen.add(i / 1000)
    assert quantile(seen.counts, 0.95) == pytest.approx(0.95, abs=0.01)
    assert quantile(seen.counts, 0.1) == pytest.approx(0.1, abs=0.01)
    for seconds in (0.0013, 0.0503, 0.7, 31.0):  # all alike: the least that bounds can tell
        alike = Histogram()
        alike.add(seconds)
        assert seconds <= quantile(alike.counts, 0.95) * 1.02 <= 1.3 * seconds
    seen.add(1e9)
    assert quantile(seen.counts, 1.0) == BOUNDS[-1]
    assert quantile(Histogram().counts, 0.5) is None


def test_counts_add_up_and_differ() -> None:
    """Over workers, and from one look to the next."""
    one, other = Histogram(), Histogram()
    one.add(0.01)
    other.add(0.01)
    other.add(1.0)
    both = together([one.counts, other.counts])
    assert sum(both) == 3
    assert grown(one.counts, both) == other.counts
    assert grown((), both) == both
    assert sum(together([])) == 0
