"""The account of `jobs/chaos.py` reports each fault that the stats do not show."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import chaos_account as account
from rayingest.plan.figures.histogram import Histogram

ADDS_UP: dict[str, Any] = {
    "killed": 30, "nodes_lost": 10, "died": 48, "idle_dead": 1, "workers_lost": 51,
    "reads_failed": 152, "reads_failed_sure": 60, "storage_retries": 118,
    "long_reads": 21, "long_reads_sure": 14,
}  # fmt: skip


def test_what_adds_up_is_not_reported() -> None:
    """Values at the bounds add up too."""
    assert account.faults_unaccounted(ADDS_UP) == []
    for bounds in (
        {"workers_lost": 47},
        {"storage_retries": 60},
        {"storage_retries": 152},
        {"long_reads": 14},
    ):
        assert account.faults_unaccounted(ADDS_UP | bounds) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"workers_lost": 1}, "workers_lost: 1, expected 47 to 178"),
        ({"workers_lost": 46}, "workers_lost: 46"),
        ({"workers_lost": 179}, "workers_lost: 179"),
        ({"storage_retries": 1}, "storage_retries: 1, expected 60 to 152"),
        ({"storage_retries": 59}, "storage_retries: 59"),
        ({"storage_retries": 153}, "storage_retries: 153"),
        ({"long_reads": 13}, "long_reads: 13, expected 14 or more"),
    ],
)
def test_what_the_stats_leave_out_is_reported(wrong: dict[str, int], words: str) -> None:
    """Each disagreement, with its figures."""
    told = account.faults_unaccounted(ADDS_UP | wrong)
    assert len(told) == 1
    assert told[0].startswith(words)


def test_what_a_reader_that_lives_has_met_must_show() -> None:
    """All failed reads of a live reader count, and its hangs that do not overlap; a dead one may
    lack all.
    """
    notes = [
        "fail 1 10.0 reader", "fail 2 11.0 reader", "fail 9 11.0 other",
        "hang 1 20.0 reader", "hang 1 25.0 reader", "hang 1 40.0 reader",
        "hang 3 26.0 reader", "hang 2 27.0 reader",
    ]  # fmt: skip
    faults = account.faults_in("\n".join(notes))
    assert account.storage_faults(faults, {1, 3}, 8.0) == {
        "reads_failed": 2,
        "reads_failed_sure": 1,
        "reads_hung": 5,
        "long_reads_sure": 3,
    }
    assert account.storage_faults([], {1}, 8.0)["long_reads_sure"] == 0


def test_long_reads_are_those_of_the_durations_bounds() -> None:
    """The bounds limit the precision: reads of 18 s may count as 20."""
    seen = Histogram()
    for seconds, times in ((0.01, 9), (9, 2), (18, 3), (30, 4), (60, 5)):
        for _ in range(times):
            seen.add(seconds)
    assert [account.long_reads(seen.counts, seconds) for seconds in (8.0, 20.0, 20.1)] == [
        14,
        12,
        9,
    ]
