"""Dispatch of blocks that can only be read in order, by one reader.

A read may bring fewer blocks than were requested: the others do not exist yet.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.plan.dispatch import events as ev
from tests.support.dispatch_world import World, world

ROWS, ROW_BYTES, STEPS = 6, 10, 12


def steps(first: int = 0, count: int = STEPS) -> Iterator[ev.StepWork]:
    """Yield steps that each take all rows from a block of their own."""
    for step in range(count):
        yield ev.StepWork(np.full(ROWS, first + step), np.full(ROWS, step + 1))


def in_order(seed: int, spare: int, **limits: int) -> World:
    """Return a world with two readers, in which reads may bring fewer blocks than requested."""
    sizes = np.array([random.Random(seed + i).randint(20, 200) for i in range(3 * STEPS)])
    budget = int(sizes.max()) + ROWS * ROW_BYTES + spare
    w = world(seed, sizes, ROW_BYTES, max_bytes=budget, in_order=True, inline_bytes=0, **limits)
    w.short = True
    w.join("reader")
    return w


def assert_one_read_at_a_time(w: World) -> None:
    """A second read runs beside the first only for blocks needed sooner.

    Such blocks were lost or evicted, and are read again.
    """
    firsts = [
        min(map(w.dispatch.state.cache.awaited_by, command.blocks))
        for command in w.reading.values()
    ]
    assert firsts == sorted(firsts, reverse=True)
    assert all(list(command.blocks) == sorted(command.blocks) for command in w.reading.values())


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    spare=st.sampled_from([0, 100, 1 << 40]),
    read_blocks=st.integers(1, 5),
    loss_rate=st.sampled_from([0.0, 0.1]),
)
def test_one_read_at_a_time_gives_every_step(
    seed: int, spare: int, read_blocks: int, loss_rate: float
) -> None:
    """Short reads, failures and losses lose no step; without losses one reader does all."""
    w = in_order(seed, spare, read_blocks=read_blocks, max_tries=1000)
    readers = set()
    w.start(steps())
    for _ in range(5000):
        assert_one_read_at_a_time(w)
        readers |= {command.worker for command in w.reading.values()}
        moves = w.moves()
        if not moves:
            break
        if w.rng.random() < loss_rate:
            w.rng.choice([w.lose_worker, w.lose_blocks, w.be_late])()
        else:
            w.move(
                *w.rng.choice(moves),
                fails=bool(loss_rate) and w.rng.random() < 0.1 and bool(w.reading),
            )
    assert w.failed is None
    assert w.delivered == [(step, list(range(ROWS))) for step in range(STEPS)]
    assert w.dispatch.charged_bytes == 0
    if not loss_rate:
        assert len(readers) == 1
        assert w.dispatch.stats()["blocks_read"] == STEPS + w.dispatch.stats()["blocks_reread"]


def test_a_read_of_an_old_start_delays_no_step() -> None:
    """After a new start all steps arrive, even if the old read never ends."""
    w = in_order(1, 1 << 40)
    w.start(steps())
    (old,) = w.reading
    w.start(steps(first=STEPS))
    assert len(w.reading) == 2
    while moves := [move for move in w.moves() if move != ("read", old)]:
        w.move(*moves[0])
    assert [step for step, _ in w.delivered] == [*range(STEPS)]
    w.end_read(old)
    assert not w.store


def test_blocks_behind_an_unreadable_block_fail_with_it() -> None:
    """All blocks of the read get its error, and none is tried again.

    The first read is of one block, because no size is known yet.
    """
    w = in_order(2, 1 << 40, read_blocks=4)
    w.short, w.block_errors = False, frozenset(range(1, 3 * STEPS))
    w.start(steps())
    assert [command.blocks for command in w.reading.values()] == [(0,)]
    w.end_read(*w.reading)
    w.end_decode(*w.decoding)
    assert [command.blocks for command in w.reading.values()] == [(1, 2, 3, 4)]
    w.end_read(*w.reading)
    assert w.dispatch.stats()["retries"] == 0
    assert w.errors.keys() == {1, 2, 3, 4}
