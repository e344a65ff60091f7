"""A histogram counts each duration in its range; its counts give sums, differences, quantiles."""

from __future__ import annotations

import pytest

from rayingest.plan.figures.histogram import (
    BOUNDS,
    COARSE,
    Histogram,
    add_counts,
    quantile,
    subtract_counts,
)


def test_a_duration_is_counted_once_at_the_least_bound_that_is_not_below_it() -> None:
    """A duration equal to a bound belongs to it; the last count is of durations above all."""
    seen = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 50.0, 51.0):
        seen.add(seconds)
    assert seen.counts[:2] == [2, 1]
    assert seen.counts[-2:] == [1, 1]
    assert list(BOUNDS) == sorted(BOUNDS)
    assert BOUNDS[COARSE[-1]] == BOUNDS[-1] == 50


def test_bounds_are_preferred_numbers_and_every_third_is_exported() -> None:
    """Ten a decade from 1 ms to 50 s, three of them coarse."""
    assert " ".join(f"{bound:g}" for bound in BOUNDS[20:31]) == (
        "0.1 0.125 0.16 0.2 0.25 0.315 0.4 0.5 0.63 0.8 1"
    )
    assert len(BOUNDS) == 48
    assert " ".join(f"{BOUNDS[number]:g}" for number in COARSE) == (
        "0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10 20 50"
    )


def test_a_quantile_at_the_end_of_a_range_is_its_bound() -> None:
    """Between two bounds, durations are assumed to lie evenly."""
    counts = Histogram().counts
    counts[0], counts[1] = 2, 2
    assert quantile(counts, 0.25) == pytest.approx(0.0005)
    assert quantile(counts, 0.5) == 0.001
    assert quantile(counts, 0.75) == pytest.approx(0.001125)
    assert quantile(counts, 1.0) == BOUNDS[1]


def test_quantiles_are_those_of_the_durations_up_to_the_bounds() -> None:
    """A quantile lies between the bounds around the true value; without durations it is None."""
    seen = Histogram()
    for i in range(1000):
        seen.add(i / 1000)
    assert quantile(seen.counts, 0.95) == pytest.approx(0.95, abs=0.01)
    assert quantile(seen.counts, 0.1) == pytest.approx(0.1, abs=0.01)
    for seconds in (0.0013, 0.0503, 0.7, 31.0):  # a single duration: the worst case
        single = Histogram()
        single.add(seconds)
        assert seconds <= quantile(single.counts, 0.95) * 1.02 <= 1.3 * seconds
    seen.add(1e9)
    assert quantile(seen.counts, 1.0) == BOUNDS[-1]
    assert quantile(Histogram().counts, 0.5) is None


def test_counts_are_added_and_subtracted() -> None:
    """Counts of two workers have a sum; counts of two looks have a difference."""
    one, other = Histogram(), Histogram()
    one.add(0.01)
    other.add(0.01)
    other.add(1.0)
    both = add_counts([one.counts, other.counts])
    assert sum(both) == 3
    assert subtract_counts(both, one.counts) == other.counts
    assert subtract_counts(both, ()) == both
    assert add_counts([]) == [0] * 49


def test_counts_of_other_bounds_are_refused() -> None:
    """They have another number of entries."""
    with pytest.raises(ValueError):
        add_counts([[1, 2]])
    with pytest.raises(ValueError):
        subtract_counts([1, 2], [1])
