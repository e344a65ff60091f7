"""The shares of pools: decoders evenly, stores by the ranks that can be on a node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayingest.execute.cluster.sharing import (
    EXPIRY_SECONDS,
    PATIENCE_SECONDS,
    Pools,
    Report,
    Share,
    even_share,
)

LATE = PATIENCE_SECONDS + 1.0


def report(rank: int, wanted: int, running: int, waiting: float = 0.0, node: str = "n") -> Report:
    """A report of a rank's only pool."""
    return Report(f"pool{rank}", rank, node, 100 + rank, wanted, running, waiting)


def shares(pools: Pools, reports: list[Report], now: float, free_cpus: int = 0) -> list[int | None]:
    """Report in turn; return the limits that the pools hear when they report again."""
    for one in reports:
        pools.add(one, now, free_cpus)
    return [pools.add(one, now + 0.5, free_cpus).most for one in reports]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 40))
def test_an_even_share_is_the_smallest_limit_that_uses_all(wanted: list[int], free: int) -> None:
    """With one less, fewer decoders than there are CPUs for would run."""

    def used(limit: int) -> int:
        return sum(min(want, limit) for want in wanted)

    share, all_used = even_share(wanted, free), min(free, sum(wanted))
    assert used(share) >= all_used
    assert not share or used(share - 1) < all_used


def test_a_pool_with_more_gives_up_what_another_waits_for() -> None:
    """4 and 2 of 6 become 3 and 3."""
    assert shares(Pools(2), [report(0, 4, 4), report(1, 4, 2, LATE)], 0.0) == [3, None]


def test_every_pool_gets_its_first_decoder() -> None:
    """Three ranks, of which the first took all three CPUs, or the only one."""
    late = [report(1, 4, 0, LATE), report(2, 4, 0, LATE)]
    assert shares(Pools(3), [report(0, 4, 3), *late], 0.0) == [1, None, None]
    assert shares(Pools(3), [report(0, 4, 1), *late], 0.0) == [None, None, None]


def test_pools_that_want_less_leave_the_rest_to_others() -> None:
    """8 CPUs: 1, and 4 and 3 for those that want more."""
    found = [report(0, 1, 1), report(1, 9, 6), report(2, 9, 1, LATE)]
    assert shares(Pools(3), found, 0.0) == [None, 4, None]


def test_nothing_is_given_up_without_need() -> None:
    """Not for a difference of one, for a decoder that only starts, or if CPUs are free."""
    for found, free in (
        ([report(0, 4, 3, LATE), report(1, 4, 2, LATE)], 0),
        ([report(0, 4, 4), report(1, 4, 2, PATIENCE_SECONDS - 0.1)], 0),
        ([report(0, 4, 4), report(1, 4, 2, LATE)], 1),
        ([report(0, 6, 4, LATE)], 0),
    ):
        assert shares(Pools(2), found, 0.0, free) == [None] * len(found)


def test_a_limit_holds_until_the_waiting_pool_has_its_decoder() -> None:
    """A freed CPU is there for a moment; the pool that gave it up must not take it back."""
    pools = Pools(2)
    rich, poor = report(0, 4, 4), report(1, 4, 2, LATE)
    assert shares(pools, [rich, poor], 0.0) == [3, None]
    assert shares(pools, [rich, report(1, 4, 2, LATE + 2)], 2.0, free_cpus=1) == [3, None]
    assert shares(pools, [rich, report(1, 4, 3)], 4.0) == [None, None]


def test_pools_that_closed_or_fell_silent_do_not_count() -> None:
    """The others then have all that there is."""
    for gone in (True, False):
        pools = Pools(2)
        pools.add(report(1, 4, 0, LATE), 0.0, 0)
        pools.add(report(0, 4, 4), 1.0, 0)
        if gone:
            pools.remove("pool1")
        later = 1.5 if gone else EXPIRY_SECONDS + 0.1
        assert pools.add(report(0, 4, 4), later, 0).most is None
        assert len(pools) == 1


def test_ranks_whose_node_is_unknown_can_be_here() -> None:
    """The number only falls: 4 of 4, then 2 once the others are known to be elsewhere."""
    pools = Pools(4)
    assert pools.add(report(0, 1, 1, node="a"), 0.0, 0) == Share(None, 4)
    assert pools.add(report(1, 1, 1, node="b"), 0.0, 0).local_ranks == 3
    assert pools.add(report(2, 1, 1, node="a"), 0.0, 0).local_ranks == 3
    assert pools.add(report(3, 1, 1, node="b"), 0.0, 0).local_ranks == 2
    assert pools.add(report(0, 1, 1, node="a"), 0.1, 0).local_ranks == 2


def test_processes_of_one_rank_count_each() -> None:
    """Peers that get the same batches have stores of their own; two pools of a process do not."""
    pools = Pools(1)
    pools.add(Report("a", 0, "n", 1, 1, 1), 0.0, 0)
    assert pools.add(Report("b", 0, "n", 1, 1, 1), 0.0, 0).local_ranks == 1
    assert pools.add(Report("c", 0, "n", 2, 1, 1), 0.0, 0).local_ranks == 2


def test_many_pools_report_less_often() -> None:
    """One actor takes 500 reports a second."""
    pools = Pools(4096)
    for rank in range(1000):
        share = pools.add(report(rank, 1, 1), 0.0, 0)
    assert share.report_seconds == 2.0
