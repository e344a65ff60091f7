"""The order's parameters: what is refused, what the defaults are, and what follows from them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.errors import ConfigError
from rayingest.plan.order.interleave import LevelInterleave
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.mixed import resolve as resolve_mixture
from rayingest.plan.order.mixed import source_order
from rayingest.plan.order.mixture import Mixture
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.subset import Subset
from rayingest.plan.order.window import Lanes
from tests.support import plan_reference
from tests.support.plan_cases import manifest, order, rules, uniform

MIB = 1 << 20
LARGE = uniform(2_000, 1_000, 60_000)  # two million samples of 60 kB


def resolve(data: Manifest = LARGE, **options: Any) -> Order:
    return Order.resolve(data, **{"batch": 2_048, "seed": 0} | options)


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, r"batch\(0\).*at least 1"),
        ({"batch": -4}, r"batch\(-4\)"),
        ({"partial": "keep"}, r"partial='keep'.*'drop', 'pad', 'short'"),
        ({"window": 0}, r"window=0.*at least 1"),
        ({"lanes": 0}, r"lanes=0 does not divide.*2048"),
        ({"lanes": -2}, r"lanes=-2"),
        ({"lanes": 3}, r"lanes=3 does not divide.*2048"),
        (
            {"batch": 4_000_000, "lanes": 4_000_000, "partial": "pad"},
            r"lanes=4000000 is more than the 2000000 samples",
        ),
    ],
)
def test_a_wrong_option_is_named_with_its_value(options: dict[str, Any], message: str) -> None:
    """The error names the option, the value and what is allowed."""
    with pytest.raises(ConfigError, match=message):
        resolve(**options)


def test_less_than_a_batch_is_an_error_with_drop_alone() -> None:
    """Nothing would be left of it; the other policies make it one step."""
    with pytest.raises(
        ConfigError, match=r"10 samples are less than one global batch of 12.*'pad' or 'short'"
    ):
        resolve(manifest([10]), batch=12)
    assert Lanes(resolve(manifest([10]), batch=12, partial="pad")).steps.count == 1
    assert Lanes(resolve(manifest([10]), batch=12, partial="short")).steps.count == 1
    assert Lanes(resolve(manifest([10]), batch=10)).steps.count == 1


def test_no_samples_at_all_is_an_error_with_every_policy() -> None:
    """There is no step that could repeat or stand in for anything."""
    for partial in ("drop", "pad", "short"):
        with pytest.raises(ConfigError, match="no samples"):
            resolve(manifest([]), partial=partial)


# Steps


@pytest.mark.parametrize(
    ("partial", "samples", "steps"),
    [
        ("drop", 99, 9),
        ("drop", 100, 10),
        ("pad", 99, 10),
        ("pad", 100, 10),
        ("short", 91, 10),
        ("short", 90, 9),
    ],
)
def test_steps_of_an_epoch(partial: str, samples: int, steps: int) -> None:
    """Rounded down with `drop`, up with `pad` and `short`."""
    assert Lanes(resolve(manifest([samples]), batch=10, partial=partial)).steps.count == steps


# Lanes by default


def test_one_lane_without_shuffle() -> None:
    """File order is one lane, however large the data."""
    assert resolve(seed=None).lanes == 1


def test_one_lane_where_the_data_is_less_than_a_batch() -> None:
    """A lane could be empty otherwise; a window covering large data does not matter."""
    few = uniform(4, 250, 10**5)
    assert resolve(few, batch=1_024, partial="pad", window=10).lanes == 1
    assert resolve(few, batch=512, partial="pad", window=10).lanes == 64
    assert resolve(uniform(4, 256, 10**5), batch=1_024, window=10).lanes == 64


def test_one_lane_where_the_window_covers_up_to_64_mib() -> None:
    """Exactly 64 MiB is still one lane; a byte a sample more, or a window one sample short of all,
    is not.
    """
    data = uniform(64, 1_024, 1_024)
    assert data.total_bytes == 64 * MIB
    assert resolve(data, batch=64, window=65_536).lanes == 1
    assert resolve(data, batch=64, window=65_535).lanes == 64
    assert resolve(uniform(64, 1_024, 1_025), batch=64, window=65_536).lanes == 64


@pytest.mark.parametrize(
    ("batch", "lanes"),
    [
        (1, 1),
        (2, 2),
        (6, 2),
        (7, 1),
        (48, 16),
        (64, 64),
        (96, 32),
        (192, 64),
        (256, 64),
        (1_000, 8),
        (1_280, 64),
    ],
)
def test_lanes_are_the_largest_power_of_two_that_divides_the_batch_up_to_64(
    batch: int, lanes: int
) -> None:
    """Small batches: 64 lanes at most."""
    assert resolve(uniform(2_000, 1_000, 1_000), batch=batch, window=1_000).lanes == lanes


@pytest.mark.parametrize(
    ("batch", "lanes"),
    [
        (2_048, 64),
        (4_096, 128),
        (4_224, 128),
        (6_144, 128),
        (8_192, 256),
        (8_192 + 64, 64),
        (3 * 4_096, 256),
    ],
)
def test_lanes_of_a_large_batch_go_up_to_a_32nd_of_it(batch: int, lanes: int) -> None:
    """G/32 bounds them where that is more than 64; it need not be a power of two itself."""
    assert resolve(uniform(2_000, 1_000, 1_000), batch=batch, window=1_000).lanes == lanes


@pytest.mark.parametrize(
    ("largest_mib", "lanes"), [(32, 64), (33, 32), (64, 32), (65, 16), (1_024, 2), (3_000, 1)]
)
def test_lanes_halve_while_their_largest_blocks_exceed_2_gib(largest_mib: int, lanes: int) -> None:
    """Exactly 2 GiB is kept. One large block decides."""
    data = uniform(100, 100, 1_000)
    data.nbytes[70] = largest_mib * MIB
    assert resolve(data, batch=64, window=1_000).lanes == lanes


def test_lanes_that_are_asked_for_are_taken() -> None:
    """The defaults' bounds hold nobody who says what they want."""
    assert resolve(lanes=2_048).lanes == 2_048
    assert resolve(batch=12, lanes=3).lanes == 3
    assert resolve(manifest([5]), batch=10, partial="pad", lanes=5).lanes == 5


# Windows


def test_window_defaults_to_512_mib_of_mean_samples() -> None:
    """512 MiB over the mean raw size, where that is more than 16 batches; in whole steps, rounded
    up.
    """
    samples = 512 * MIB // 6_000
    assert resolve(uniform(2_000, 1_000, 6_000), batch=64).window_steps == -(-samples // 64)


def test_window_defaults_to_at_least_16_batches() -> None:
    """Large samples leave a window of 16 steps."""
    assert resolve().window_steps == 16
    assert resolve(uniform(400, 100, 10**8), batch=10).window_steps == 16


def test_window_of_samples_without_bytes() -> None:
    """Samples that count no bytes, or less than one each, do not divide by zero."""
    data = uniform(1_000, 1_000, 0)
    assert resolve(data, batch=1_000).window_steps == 1_000


@settings(max_examples=60)
@given(rules(file_order=False))
def test_a_lanes_window_is_its_part_rounded_up_to_steps(case: plan_reference.Rules) -> None:
    """V is window/L rounded up to a multiple of b, unless the data ends first."""
    steps = order(case).window_steps
    exact = next(
        k for k in range(1, case.window + 1) if k * case.lane_batch * case.lanes >= case.window
    )
    assert steps == min(exact, -(-case.samples // case.batch))


def test_any_window_beyond_the_data_is_the_same_order() -> None:
    """A window of all samples, and one of more than a machine's word, are equal; also as parts of a
    state.
    """
    data = uniform(100, 1_000, 100)
    assert resolve(data, window=100_000, lanes=4) == resolve(data, window=10**30, lanes=4)


@settings(max_examples=60)
@given(st.integers(1, 64), st.integers(1, 3_000), st.sampled_from([None, 0, 5]))
def test_defaults_are_always_possible(batch: int, samples: int, seed: int | None) -> None:
    """Whatever the data, the defaults divide the batch and leave no lane without a sample."""
    made = resolve(manifest([samples]), batch=batch, partial="pad", seed=seed)
    assert batch % made.lanes == 0
    assert Lanes(made).samples.min() >= 1


def test_defaults_of_a_source_of_a_mixture_are_its_share() -> None:
    """A quarter of the rows has a quarter of the 512 MiB, and lanes for a quarter of the batch."""
    subset = Subset.whole(uniform(2_000, 1_000, 6_000))
    order = source_order(subset, samples_per_step=64, share=0.25, seed=1)
    assert order.lanes == order.batch == 64
    assert order.window_steps == -(-(128 * MIB // 6_000) // 64)
    assert source_order(subset, samples_per_step=64, share=0.25, seed=None).lanes == 1


@pytest.mark.parametrize(
    ("seeds", "seed", "expected"),
    [((None, None), None, None), ((None, None), 7, None), ((3, None), None, 0), ((3, 4), 7, 7)],
)
def test_the_seed_of_a_mixture(
    seeds: tuple[int | None, ...], seed: int | None, expected: int | None
) -> None:
    """That of its own shuffle where a source is shuffled, 0 without one; None in file order."""
    subset = Subset.whole(manifest([10, 10]))
    sources = [source_order(subset, samples_per_step=2, share=0.5, seed=own) for own in seeds]
    mixture = Mixture(LevelInterleave({0: (1, 1)}), [20, 20])
    order = resolve_mixture(mixture, sources, [0.5, 0.5], batch=4, partial="drop", seed=seed)
    assert order.seed == expected
    assert order.samples == 36
    assert order.lanes == sum(source.lanes for source in sources)
