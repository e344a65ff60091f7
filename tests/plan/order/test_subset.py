"""Views: which samples there are after limits, and the order over them."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.errors import ConfigError
from rayingest.plan.order import subset
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import EpochLength, Steps
from rayingest.plan.order.randomness import fold, hashes
from rayingest.plan.order.subset import Limit, Part, Skip, Subset, Take, split_parts, subset_mark
from rayingest.plan.order.window import Lanes
from tests.support import plan_cases, plan_reference
from tests.support.plan_cases import divisors, global_batch, manifest, rules, window_planner
from tests.support.plan_reference import Rules


def ordinals(subset: Subset) -> list[int]:
    """Of all samples in the subset, in file order."""
    block = np.repeat(np.arange(subset.num_blocks), subset.samples)
    row = subset.row(block, np.arange(len(block)) - subset.first_position[block])
    return (subset.manifest.first_ordinal[block] + row).tolist()


def limits(data: st.DataObject) -> list[Limit]:
    """Up to four of any kind."""
    kinds = data.draw(st.lists(st.sampled_from("tsp"), max_size=4))
    counts = st.integers(1, 60)
    make = {
        "t": lambda: Take(data.draw(counts)),
        "s": lambda: Skip(data.draw(counts) // 4),
        "p": lambda: split_parts([0.7, 0.3], data.draw(st.integers(0, 3)))[
            data.draw(st.integers(0, 1))
        ],
    }
    return [make[kind]() for kind in kinds]


@settings(max_examples=100)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.data())
def test_limits_are_those_of_a_list(counts: list[int], data: st.DataObject) -> None:
    """Any limits leave the ordinals that slices and choices leave of the list of all ordinals."""
    whole = Subset.whole(manifest(counts))
    left = list(range(sum(counts)))
    parts = {
        part: set(ordinals(part.apply(whole)))
        for seed in range(4)
        for part in split_parts([0.7, 0.3], seed)
    }
    subset = whole
    for limit in limits(data):
        subset = limit.apply(subset)
        match limit:
            case Take(count):
                left = left[:count]
            case Skip(count):
                left = left[count:]
            case _:
                left = [i for i in left if i in parts[limit]]
        assert ordinals(subset) == left
        assert subset.num_samples == len(left)


@settings(max_examples=100)
@given(
    rules(partials=["drop", "pad", "short"], max_batch=12),
    st.integers(0, 3),
    st.sampled_from([0, 1, 10**6]),
)
def test_the_order_over_a_view_follows_the_rules_of_its_counts(
    case: Rules, seed: int, epoch: int
) -> None:
    """Every step's rows are those that the rules give for blocks of so many samples, on every world
    size.
    """
    data = manifest(case.counts)
    subset = (
        Subset.whole(data).through([Skip(min(2, case.samples - 1))])
        if seed == 3
        else Subset.whole(data)
    )
    subset = split_parts([0.6], seed)[0].apply(subset)
    if subset.num_samples < case.batch or subset.num_samples < case.lanes:
        return
    rows = np.split(np.array(ordinals(subset)), np.cumsum(subset.samples)[:-1])
    of_view = Rules(
        tuple(subset.samples.tolist()), case.batch, case.partial, case.seed, case.lanes, case.window
    )
    how = (
        {"seed": case.seed, "window": case.window, "lanes": case.lanes}
        if case.seed is not None
        else {}
    )
    order = Order.resolve(subset, batch=case.batch, partial=case.partial, **how)
    expected = [
        [(int(rows[r.block][r.row]), r.valid) for r in b]
        for b in plan_reference.batches(of_view, epoch)
    ]
    for world_size in divisors(case.batch):
        ranks = [window_planner(subset, order, rank, world_size) for rank in range(world_size)]
        for step, batch in enumerate(expected):
            found = [
                (int(data.first_ordinal[b]) + row, v)
                for b, row, v in global_batch(ranks, epoch, step)
            ]
            assert found == batch


@settings(max_examples=60)
@given(rules(), st.integers(1, 40), st.integers(0, 5))
def test_another_epoch_length_only_renames_steps(case: Rules, epoch_steps: int, epoch: int) -> None:
    """Whatever an epoch's length, its steps are those of the passes in a row; so is where a window
    ends.
    """
    data, order = manifest(case.counts), plan_cases.order(case)
    plain = window_planner(data, order)
    steps = plain.steps_per_epoch
    planner = window_planner(data, order, epoch_length=EpochLength(steps, epoch_steps))
    for step in range(epoch_steps):
        pass_number, at = divmod(epoch * epoch_steps + step, steps)
        expected, found = plain.step_samples(pass_number, at), planner.step_samples(epoch, step)
        assert (found.epoch, found.step, found.pass_number) == (epoch, step, pass_number)
        assert np.array_equal(found.expires - step, expected.expires - at)
        for name in ("block", "row", "ordinal", "valid", "position"):
            assert np.array_equal(getattr(found, name), getattr(expected, name))


def steps_of(order: Order) -> Steps:
    return Lanes(order).steps


def test_epochs_of_so_many_samples_or_passes() -> None:
    """Samples are rounded down to whole batches; passes keep the tail; what cannot be is refused by
    name.
    """
    data = manifest([50, 50])
    order = Order.resolve(data, batch=8)
    assert EpochLength.resolve(steps_of(order), samples=30).epoch_steps == 3
    assert EpochLength.resolve(steps_of(order), samples=1_000).epoch_steps == 125
    assert EpochLength.resolve(steps_of(order), passes=3).epoch_steps == 36
    short = Order.resolve(data, batch=8, partial="short")
    assert EpochLength.resolve(steps_of(short), passes=2).epoch_steps == 26
    with pytest.raises(ConfigError, match="passes"):
        EpochLength.resolve(steps_of(short), samples=30)
    with pytest.raises(ConfigError, match="batch of 8"):
        EpochLength.resolve(steps_of(order), samples=7)


def shards(counts: dict[str, int], root: str = "mem://") -> Manifest:
    blocks = [plan_cases.shard_blocks([count]) for count in counts.values()]
    return Manifest.join(root, list(counts), [0] * len(counts), [""] * len(counts), blocks)


def in_part(data: Manifest, part: int, seed: int = 0) -> set[tuple[str, int]]:
    """(name of the shard's file, number there) of the samples in a part."""
    subset = split_parts([0.8, 0.2], seed)[part].apply(Subset.whole(data))
    block = np.repeat(np.arange(subset.num_blocks), subset.samples)
    row = subset.row(block, np.arange(len(block)) - subset.first_position[block])
    return {
        (data.paths[b].rpartition("/")[2], r)
        for b, r in zip(block.tolist(), row.tolist(), strict=True)
    }


def test_a_split_is_stable_when_data_is_added() -> None:
    """Shards before, between and behind, longer shards, another root: each sample stays in its
    part.
    """
    before = shards({"b.tar": 300, "d.tar": 200})
    after = shards(
        {"x/a.tar": 100, "x/b.tar": 300, "x/c.tar": 50, "x/d.tar": 280}, "s3://elsewhere/"
    )
    for part in (0, 1):
        there = {
            (name, n) for name, count in (("b.tar", 300), ("d.tar", 200)) for n in range(count)
        }
        assert in_part(after, part) & there == in_part(before, part)


def test_parts_have_nothing_in_common_and_nothing_is_left() -> None:
    """Of near enough the size asked for, another for another seed."""
    data = shards({"a.tar": 20_000})
    train, rest = in_part(data, 0), in_part(data, 1)
    assert not train & rest
    assert len(train) + len(rest) == 20_000
    assert abs(len(train) - 16_000) < 5 * (20_000 * 0.8 * 0.2) ** 0.5
    assert in_part(data, 0, seed=1) != train
    parts = split_parts([0.25, 0.25, 0.5], 0)
    assert all(a.end == b.begin for a, b in pairwise(parts))
    assert parts[-1].end == 1 << 64


@pytest.mark.parametrize(
    ("fractions", "said"),
    [((), "split takes"), ((0.9, 0.2), "1.1"), ((0.0,), "0.0"), (("a",), "'a'"), ((True,), "True")],
)
def test_what_is_no_split_is_refused(fractions: tuple[float, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        split_parts(fractions, 0)


def test_a_limit_that_leaves_nothing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no sample is left: skip\(9\) removes all 5 samples"):
        Subset.whole(manifest([3, 4])).through([Take(5), Skip(9)])


def test_a_views_mark_is_short() -> None:
    """In words, or a hash where there are many; "" for everything."""
    assert subset_mark([]) == ""
    assert subset_mark([Skip(3), Take(5)]) == "skip(3), take(5)"
    assert len(subset_mark([Take(i) for i in range(1, 99)])) == 32


def test_a_subset_of_many_parts_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinals are chosen some blocks at a time; a larger block is a part of its own."""
    whole = Subset.whole(manifest([3, 9, 1, 4, 2]))
    asked: list[list[int]] = []

    def odd(ordinal: np.ndarray) -> np.ndarray:
        asked.append(ordinal.tolist())
        return ordinal % 2 == 1

    monkeypatch.setattr(subset, "_AT_ONCE", 5)
    kept = whole.keep(odd)
    assert asked == [[0, 1, 2], list(range(3, 12)), [12, 13, 14, 15, 16], [17, 18]]
    assert ordinals(kept) == list(range(1, 19, 2))
    assert kept.samples.tolist() == [1, 5, 0, 2, 1]
    assert kept.total_bytes == 900
    assert kept.nbytes.tolist() == [300, 900, 0, 400, 200]


def test_a_part_has_the_hashes_from_its_begin_up_to_its_end() -> None:
    """The part [h, h + 1) has the sample with the hash h; the parts beside it do not."""
    data = manifest([5])
    name = int.from_bytes(hashlib.blake2b(data.paths[0].encode(), digest_size=8).digest())
    hashed = int(hashes(5, fold("split", 3, name))[2])
    whole = Subset.whole(data)
    assert ordinals(Part(hashed, hashed + 1, 3).apply(whole)) == [2]
    assert 2 not in ordinals(Part(0, hashed, 3).apply(whole))
    assert 2 not in ordinals(Part(hashed + 1, 1 << 64, 3).apply(whole))
    assert ordinals(Part(0, 1 << 64, 3).apply(whole)) == [0, 1, 2, 3, 4]
