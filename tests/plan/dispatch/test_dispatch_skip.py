"""Dispatch that skips bad samples: each row gets its first good candidate.

It does so whichever samples are bad, and whenever they are found.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rayingest.errors import ConfigError, DataError
from rayingest.plan.dispatch import events as ev
from rayingest.plan.order.parameters import Order
from tests.plan.dispatch.test_dispatch import ROW_BYTES, budgets
from tests.support.dispatch_world import World, world
from tests.support.plan_cases import manifest, window_planner
from tests.support.skipping import SkippingSteps

BATCH = 6


def made(
    seed: int, *, bad: float, broken: int, shuffled: bool = True, first: int = 0
) -> SkippingSteps:
    """Return steps over 12 uneven blocks; some blocks are unreadable, some samples are bad."""
    rng = random.Random(seed)
    counts = [rng.randint(2, 9) for _ in range(12)]
    data = manifest(counts)
    order = Order.resolve(
        data, batch=BATCH, partial="pad", seed=seed if shuffled else None, window=30, lanes=None
    )
    ordinals = {i for i in range(sum(counts)) if rng.random() < bad}
    return SkippingSteps(
        window_planner(data, order), ordinals, set(rng.sample(range(12), broken)), first
    )


def in_world(skipping: SkippingSteps, seed: int, spare: int = 1 << 40, **limits: Any) -> World:
    """Return a world with the same bad samples and unreadable blocks."""
    sizes = np.array([20 * int(n) for n in skipping.planner.manifest.samples])
    w = world(
        seed, sizes, ROW_BYTES, max_bytes=int(sizes.max()) + BATCH * ROW_BYTES + spare, **limits
    )
    w.block_errors, w.bad = frozenset(skipping.broken), skipping.bad_places
    w.start(skipping.steps(), skipping.replacement)
    return w


def assert_filled(w: World, skipping: SkippingSteps) -> None:
    """Every step arrived whole, and each row is the sample that the plan alone gives."""
    steps = skipping.planner.steps_per_epoch - skipping.first
    assert w.failed is None
    assert not w.errors
    assert w.delivered == [(step, list(range(BATCH))) for step in range(steps)]
    for step in range(skipping.first, skipping.planner.steps_per_epoch):
        assert skipping.rows(step) == skipping.expected(step)
    assert w.dispatch.charged_bytes == 0
    assert not w.outputs
    assert not w.store


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    bad=st.sampled_from([0.05, 0.3]),
    broken=st.sampled_from([0, 1, 3]),
    shuffled=st.booleans(),
    spare=budgets,
    read_ahead=st.integers(1, 12),
    first_task_rows=st.sampled_from([1, 2, 4, 100]),
    whole_steps=st.booleans(),
)
@example(
    seed=374,
    bad=0.3,
    broken=0,
    shuffled=True,
    spare=0,
    read_ahead=2,
    first_task_rows=1,
    whole_steps=False,
)
def test_each_row_ends_with_its_first_good_candidate_in_any_order_and_budget(
    seed, bad, broken, shuffled, spare, **limits
):
    """Bad samples, unreadable blocks and bad replacements are found in any order of completions."""
    skipping = made(seed, bad=bad, broken=broken, shuffled=shuffled)
    assume(skipping.all_have_stand_ins())
    w = in_world(skipping, seed, spare, **limits)
    w.run()
    assert_filled(w, skipping)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), spare=budgets, read_ahead=st.integers(1, 12))
def test_failures_and_losses_do_not_change_the_replacements(seed, spare, read_ahead):
    """Tasks fail, workers and blocks are lost, and decodes are hedged."""
    skipping = made(seed, bad=0.2, broken=2)
    assume(skipping.all_have_stand_ins())
    w = in_world(skipping, seed, spare, read_ahead=read_ahead, max_tries=1000)
    w.run(fail_rate=0.15, loss_rate=0.1)
    assert_filled(w, skipping)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), first=st.integers(0, 9), moves=st.integers(0, 40))
def test_a_resumed_run_has_the_same_replacements(seed, first, moves):
    """This holds from any step on, and for a start in the middle of another run."""
    skipping = made(seed, bad=0.2, broken=2)
    assume(skipping.all_have_stand_ins())
    w = in_world(skipping, seed)
    for _ in range(moves):
        if possible := w.moves():
            w.move(*w.rng.choice(possible))
    resumed = made(seed, bad=0.2, broken=2, first=min(first, skipping.planner.steps_per_epoch - 1))
    w.bad = resumed.bad_places
    w.start(resumed.steps(), resumed.replacement)
    w.run()
    assert_filled(w, resumed)


@pytest.mark.parametrize("culprits", [1, 2])
def test_a_sample_that_ends_its_workers_is_replaced_by_the_rule_for_bad_ones(culprits: int) -> None:
    """Halving the task finds it; a replacement that ends its worker is replaced too."""
    skipping = made(3, bad=0.0, broken=0)
    own = skipping.planner.step_samples(0, 4)
    deadly = {int(own.ordinal[2])}
    for _ in range(culprits - 1):
        skipping.bad = deadly
        deadly = deadly | {skipping.expected(4)[2][0]}
    skipping.bad = set()
    w = in_world(skipping, 3, max_tries=1000)
    end_workers(w, skipping, deadly)
    skipping.bad = deadly
    assert_filled(w, skipping)
    assert "ended its worker" in skipping.filled[4].errors[2].reason


def test_a_sample_known_to_end_workers_costs_one_worker_at_each_later_start() -> None:
    """A new start tries it again, in a task of its own, and gives the same rows."""
    skipping = made(3, bad=0.0, broken=0)
    deadly = {int(skipping.planner.step_samples(0, 4).ordinal[2])}
    w = in_world(skipping, 3, max_tries=1000)
    end_workers(w, skipping, deadly)
    before, skipping.filled = w.losses, []
    assert before > 4
    w.delivered.clear()
    w.start(skipping.steps(), skipping.replacement)
    end_workers(w, skipping, deadly)
    assert w.losses == before + 1
    skipping.bad = deadly
    assert_filled(w, skipping)


def end_workers(w: World, skipping: SkippingSteps, deadly: set[int]) -> None:
    """Run to the end; each task with one of these ordinals ends its worker."""
    while w.moves() and not w.failed:
        dying = [
            command.worker
            for command in w.decoding.values()
            for part in command.parts
            if deadly & set(skipping.filled[part.step].samples.ordinal[part.rows].tolist())
        ]
        if dying:
            w.lose_worker(dying[0], ev.WorkerFailure.CRASHED)
        else:
            w.move(*w.moves()[0])


def test_steps_without_a_replacement_left_are_the_only_errors() -> None:
    """All samples of one window are bad: its steps give errors, the others arrive."""
    data = manifest([6] * 10)
    planner = window_planner(data, Order.resolve(data, batch=6, seed=1, window=12, lanes=1))
    window = {int(i) for step in (2, 3) for i in planner.step_samples(0, step).ordinal}
    skipping = SkippingSteps(planner, window, set())
    w = in_world(skipping, 5)
    w.run()
    assert set(w.errors) == {2, 3}
    assert all("no good sample of its window" in str(error) for error in w.errors.values())
    assert [step for step, _ in w.delivered] == list(range(10))
    assert w.dispatch.state.ledger.decoded == 0


@pytest.mark.parametrize(
    "error",
    [ConfigError("no such column"), DataError("no answer within 30 s", transient=True)],
    ids=["config", "late"],
)
def test_an_error_that_is_not_of_the_data_is_never_skipped(error: Exception) -> None:
    """The steps that need the block give its error; no sample is replaced."""
    skipping = made(4, bad=0.0, broken=0)
    w = in_world(skipping, 4)
    unread = int(skipping.planner.step_samples(0, 3).block[0])
    while w.moves():
        if late := [task for task, read in w.reading.items() if unread in read.blocks]:
            del w.reading[late[0]]
            w.tell(ev.ReadFailed(late[0], error, final=True))
        else:
            w.move(*w.moves()[0])
    steps = range(skipping.planner.steps_per_epoch)
    assert set(w.errors) == {
        step for step in steps if unread in skipping.planner.step_samples(0, step).block
    }
    assert set(w.errors.values()) == {error}
    assert all(not step.errors for step in skipping.filled)
