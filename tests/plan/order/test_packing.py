"""Packed rows: every token once, in rows that are full, at any step, on any ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayingest.errors import ConfigError
from rayingest.plan.order.packed import BinBatcher, plan, resolve
from rayingest.plan.order.packing import Packing
from rayingest.plan.order.planner import Planner, RankSlice
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.order.subset import Subset
from tests.support.plan_cases import divisors, manifest, uniform

Token = tuple[int, int]
"""A sample's ordinal, and the number of a token in it."""

LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=60)


@given(LENGTHS, st.integers(12, 20), st.booleans())
def test_bins_hold_every_token_once(lengths: list[int], limit: int, cut: bool) -> None:
    """No bin exceeds the limit, `count` is exact, and without `cut` no sample is in two bins."""
    packing = Packing(limit, cut)
    bins = packing.bins(np.array(lengths))
    assert len(bins) == packing.count(np.array(lengths)[::-1])
    tokens = Counter()  # type: ignore[var-annotated]
    for begin, end in zip(bins.begins[:-1], bins.begins[1:], strict=True):
        pieces = range(begin, end)
        assert 0 < sum(int(bins.end[p] - bins.begin[p]) for p in pieces) <= limit
        samples = bins.sample[begin:end].tolist()
        assert samples == sorted(samples)
        for p in pieces:
            tokens.update((int(bins.sample[p]), i) for i in range(bins.begin[p], bins.end[p]))
    assert tokens == Counter((s, i) for s, length in enumerate(lengths) for i in range(length))
    if cut:
        assert len(bins) == -(-sum(lengths) // limit)
    else:
        assert max(Counter(bins.sample.tolist()).values(), default=1) == 1


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_samples_without_values_make_no_rows(lengths: list[int], cut: bool) -> None:
    """Neither no samples nor samples of length 0 begin a row."""
    packing = Packing(8, cut)
    assert len(packing.bins(np.array(lengths, np.int64))) == 0
    assert packing.count(np.array(lengths, np.int64)) == 0


@given(LENGTHS, st.integers(12, 20))
def test_best_fit_is_best_fit_decreasing(lengths: list[int], limit: int) -> None:
    """As many bins as when it is done sample by sample."""
    rooms: list[int] = []
    for length in sorted(filter(None, lengths), reverse=True):
        fits = [room for room in rooms if room >= length]
        if fits:
            rooms.remove(min(fits))
        rooms.append((min(fits) if fits else limit) - length)
    assert Packing(limit, cut=False).count(np.array(lengths)) == len(rooms)


def lengths_of(counts: tuple[int, ...]) -> np.ndarray:
    lengths = np.random.default_rng(1).integers(0, 9, sum(counts))
    lengths[0] = 8
    return lengths


def made(
    counts: tuple[int, ...],
    seed: int | None,
    rank: int = 0,
    world_size: int = 1,
    *,
    cut: bool = True,
    partial: str = "short",
    batch: int = 6,
    window: int = 20,
) -> Planner:
    data, lengths = manifest(counts), lengths_of(counts)
    packing = Packing(8, cut)
    subset = Subset.whole(data)
    order = resolve(
        subset, lengths, packing, batch=batch, partial=partial, seed=seed, window=window
    )
    ranks = RankSlice(rank, world_size, batch % world_size > 0)
    return plan(subset, order, packing, lengths, ranks)


def bins_of(planner: Planner, pass_number: int) -> int:
    """The number of packed rows of a pass."""
    assert isinstance(planner.batcher, BinBatcher)
    return planner.batcher.bins_of(pass_number)


def rows(samples: StepSamples) -> list[tuple[bool, list[Token]]]:
    """Each packed row's tokens, and whether it is valid."""
    layout = samples.layout
    assert layout is not None
    found: list[tuple[bool, list[Token]]] = [(bool(valid), []) for valid in layout.valid]
    for row, sample, begin, end in zip(
        layout.row, layout.sample, layout.begin, layout.end, strict=True
    ):
        found[row][1].extend((int(samples.ordinal[sample]), i) for i in range(begin, end))
    return found


COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=12).map(tuple)
SEEDS = st.none() | st.integers(0, 99)


@given(COUNTS, SEEDS, st.booleans(), st.sampled_from(["drop", "pad", "short"]), st.integers(0, 3))
def test_an_epoch_has_every_token_once(
    counts: tuple[int, ...], seed: int | None, cut: bool, partial: str, epoch: int
) -> None:
    """In valid rows; the tail as declared."""
    planner = made((7, *counts), seed, cut=cut, partial=partial, batch=3)
    steps = [rows(planner.step_samples(epoch, step)) for step in range(planner.steps_in(epoch))]
    tokens = Counter(token for step in steps for valid, row in step if valid for token in row)
    assert not tokens or max(tokens.values()) == 1
    left = bins_of(planner, epoch) % 3
    if partial == "drop":
        assert all(len(step) == 3 for step in steps)
        assert len(steps) == bins_of(planner, epoch) // 3
        return
    assert set(tokens) == {
        (i, t) for i, length in enumerate(lengths_of((7, *counts)).tolist()) for t in range(length)
    }
    assert all(valid for step in steps[:-1] for valid, _ in step)
    valid = [valid for valid, _ in steps[-1]]
    assert valid == [True] * (left or 3) + [False] * (3 - left if left and partial == "pad" else 0)


@given(
    COUNTS,
    SEEDS,
    st.booleans(),
    st.sampled_from(["pad", "short"]),
    st.sampled_from([1, 2, 3, 4, 6]),
)
def test_ranks_share_the_same_batches(
    counts: tuple[int, ...], seed: int | None, cut: bool, partial: str, world_size: int
) -> None:
    """Their rows, one rank's behind another's, are those of one rank; all have as many steps; asked
    in any order.
    """
    alone = made(counts, seed, cut=cut, partial=partial)
    ranks = [
        made(counts, seed, rank, world_size, cut=cut, partial=partial) for rank in range(world_size)
    ]
    for epoch in (1, 0):
        assert {rank.steps_in(epoch) for rank in ranks} == {alone.steps_in(epoch)}
        for step in reversed(range(alone.steps_in(epoch))):
            parts = [rank.step_samples(epoch, step) for rank in ranks]
            assert [row for part in parts for row in rows(part)] == rows(
                alone.step_samples(epoch, step)
            )
            assert all(len(part.block) > 0 and part.size == max(1, part.rows) for part in parts)
            fresh = made(
                counts, seed, ranks[-1].rank, world_size, cut=cut, partial=partial
            ).step_samples(epoch, step)
            for name in ("block", "row", "ordinal", "expires", "length"):
                assert np.array_equal(getattr(parts[-1], name), getattr(fresh, name))


@given(COUNTS, SEEDS, st.sampled_from(divisors(6)))
def test_blocks_are_let_go_when_they_are_done_with(
    counts: tuple[int, ...], seed: int | None, world_size: int
) -> None:
    """A block is not needed from `until` on, but where another window has a part of it."""
    planner = made(counts, seed, world_size - 1, world_size)
    samples = [planner.step_samples(1, step) for step in range(planner.steps_in(1))]
    for step, one in enumerate(samples):
        assert (one.expires > step).all()
        assert (one.expires <= len(samples)).all()
        assert len({*zip(one.block.tolist(), one.expires.tolist(), strict=True)}) == len(
            set(one.block.tolist())
        )
        for later in samples[step + 1 :]:
            for block, begin, until in zip(one.block, one.window_begin, one.expires, strict=True):
                again = (later.block == block) & (later.window_begin == begin)
                assert not again.any() or later.step < until


def test_epochs_differ_and_windows_keep_their_samples() -> None:
    """Another epoch has other rows; nothing of a window is in another's rows."""
    planner = made((10,) * 10, 3, window=20)
    first, second = (
        [rows(planner.step_samples(epoch, step)) for step in range(planner.steps_in(epoch))]
        for epoch in (0, 1)
    )
    assert first != second
    for step in range(planner.steps_in(0)):
        samples = planner.step_samples(0, step)
        assert (
            (samples.window_begin <= samples.position) & (samples.position < samples.window_end)
        ).all()
        assert set(samples.window_begin.tolist()) <= {0, 20, 40, 60, 80}


def test_file_order_is_kept() -> None:
    """Without a seed, rows cut from a stream are its tokens in order."""
    planner = made((5, 9, 3), None, window=1000)
    taken = [
        t
        for step in range(planner.steps_in(0))
        for _, row in rows(planner.step_samples(0, step))
        for t in row
    ]
    assert taken == sorted(taken)


def test_best_fit_fills_rows() -> None:
    """At least 98 % of rows of 2,048 with lengths that have a long tail, in windows of 8,192."""
    data = uniform(128, 256, 1_000)
    lengths = (
        np.random.default_rng(0)
        .lognormal(np.log(150), 1, data.num_samples)
        .clip(1, 2048)
        .astype(np.uint16)
    )
    subset, packing = Subset.whole(data), Packing(2048, cut=False)
    order = resolve(
        subset,
        lengths,
        packing,
        batch=16,
        partial="drop",
        seed=1,
        window=8192,
    )
    planner = plan(subset, order, packing, lengths)
    assert lengths.sum() / (bins_of(planner, 0) * 2048) > 0.98


def test_what_cannot_be_packed_is_refused() -> None:
    """With the sample, or what is missing."""
    data = Subset.whole(manifest([4, 4]))
    lengths = np.array([1, 2, 3, 4, 5, 90, 91, 8])
    how = {"batch": 1, "partial": "drop"}
    with pytest.raises(
        ConfigError,
        match=r"sample 5 is 90 long, more than a packed row of 16: .* \(1 more samples near it",
    ):
        resolve(data, lengths, Packing(16, cut=False), **how)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="all samples have length 0"):
        resolve(data, 0 * lengths, Packing(16, cut=True), **how)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lanes=2"):
        resolve(data, lengths, Packing(16, cut=True), lanes=2, **how)  # type: ignore[arg-type]
    packing = Packing(16, cut=True)
    order = resolve(data, lengths, packing, batch=14, partial="drop")
    with pytest.raises(ConfigError, match="13 packed rows are less than one global batch of 14"):
        plan(data, order, packing, lengths)
