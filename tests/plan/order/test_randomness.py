"""Keyed hashes, permutations and generators."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayingest.plan.order import randomness

WORDS = st.integers(0, 2**64 - 1)
SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(41, 3_000),
    st.integers(65_530, 65_560),
    st.integers(65_561, 300_000),
)


def even(counts: np.ndarray) -> bool:
    """Whether equally likely cells could hold these counts: chi-square within five deviations of
    its mean.
    """
    expected = counts.sum() / counts.size
    chi_square = float(((counts - expected) ** 2).sum() / expected)
    freedom = counts.size - 1
    return bool(abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5)


def test_hashes_are_the_published_generator() -> None:
    """The hashes of a key are the outputs of SplitMix64 seeded with it."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert randomness.hashes(4, 1234567).tolist() == published


@given(st.lists(WORDS, min_size=1, max_size=20))
def test_mixing_an_array_mixes_every_word(words: list[int]) -> None:
    """`mix64_array` is `mix64` of every entry, for all 64 bits."""
    assert randomness.mix64_array(np.array(words, np.uint64)).tolist() == [
        randomness.mix64(word) for word in words
    ]


@settings(max_examples=60)
@given(SIZES, WORDS)
@example(0, 0)
@example(1, 2**64 - 1)
@example(65_536, 1)
@example(65_537, 1)
@example(1 << 17, 3)
@example(1 << 18, 3)
@example((1 << 18) + 1, 3)
@example(10**6, 3)
def test_permutation_is_a_bijection(n: int, key: int) -> None:
    """Every number of [0, n) comes up once, below and above the size from which sorting costs too
    much.
    """
    seen = np.zeros(n, bool)
    result = randomness.permutation(n, key)
    seen[result] = True
    assert len(result) == n
    assert seen.all()


@settings(max_examples=60)
@given(SIZES.filter(bool), WORDS, st.integers(1, 300))
def test_permute_is_an_entry_of_the_permutation(n: int, key: int, count: int) -> None:
    """One entry, many entries, and the whole permutation agree."""
    whole = randomness.permutation(n, key)
    asked = np.linspace(0, n - 1, count).astype(np.int64)
    assert randomness.permute(asked, n, key).tolist() == whole[asked].tolist()
    assert int(randomness.permute(n - 1, n, key)) == whole[-1]
    assert randomness.permute(asked.reshape(1, -1), n, key).shape == (1, count)


@settings(max_examples=60)
@given(st.lists(st.tuples(SIZES.filter(bool), WORDS, st.floats(0, 1)), min_size=1, max_size=8))
def test_permute_takes_arrays_of_sizes_and_keys(asked: list[tuple[int, int, float]]) -> None:
    """Each entry of the arrays has its own size and key, sorted ones and Feistel networks side by
    side.
    """
    sizes, words = [n for n, _, _ in asked], [key for _, key, _ in asked]
    index = [min(n - 1, int(at * n)) for n, _, at in asked]
    alone = [int(randomness.permute(*one)) for one in zip(index, sizes, words, strict=True)]
    together = randomness.permute(np.array(index), np.array(sizes), np.array(words, np.uint64))
    assert together.tolist() == alone


def test_permute_broadcasts() -> None:
    """A column of keys against a row of entries gives one permutation a row."""
    for n in (7, 70_000):
        words, index = np.array([[1], [2], [3]], np.uint64), np.arange(5)
        table = randomness.permute(index, n, words)
        assert table.shape == (3, 5)
        assert [row.tolist() for row in table] == [
            randomness.permutation(n, word)[:5].tolist() for word in (1, 2, 3)
        ]


@pytest.mark.parametrize("n", [0, 1, 5, 65_536, 65_537, 10**12])
def test_permute_refuses_what_is_outside(n: int) -> None:
    """An entry below 0, or at n, is an IndexError and not a number."""
    for outside in (-1, n, np.array([0, n])):
        with pytest.raises(IndexError, match="outside"):
            randomness.permute(outside, n, 3)


def test_permute_reaches_far() -> None:
    """Very large domains cost no memory, and stay bijections."""
    n = 10**15 + 1
    images = randomness.permute(np.arange(n - 10_000, n), n, 8)
    assert len(np.unique(images)) == 10_000
    assert images.min() >= 0
    assert images.max() < n


def test_all_orders_of_few_are_equally_likely() -> None:
    """The 24 permutations of 4 come up evenly over keys."""
    places = np.zeros(4**4, np.int64)
    for key in range(4_000):
        places[int(randomness.permutation(4, randomness.fold("test", key)) @ [64, 16, 4, 1])] += 1
    assert (places > 0).sum() == 24
    assert even(places[places > 0])


@pytest.mark.parametrize("n", [65_537, 65_537 + 40_000, 1 << 18])
@pytest.mark.parametrize("i", [0, 1, 40_000, 65_536])
def test_small_feistel_networks_send_an_entry_anywhere(n: int, i: int) -> None:
    """Over 20,000 keys an entry lands in 128 equal parts of the domain evenly."""
    words = randomness.hashes(20_000, 99)
    assert even(np.bincount(randomness.permute(i, n, words) * 128 // n, minlength=128))


def test_small_feistel_networks_part_neighbours() -> None:
    """Over 20,000 keys two neighbours land in pairs of 12 parts each evenly, and as often in one
    order as the other.
    """
    n, words = 65_537, randomness.hashes(20_000, 7)
    for i in (0, 31_000, 65_535):
        a, b = randomness.permute(i, n, words), randomness.permute(i + 1, n, words)
        assert even(np.bincount(a * 12 // n * 12 + b * 12 // n, minlength=144))
        assert even(np.bincount((a < b).astype(np.int64), minlength=2))


@pytest.mark.parametrize("n", [1_000, 65_536, 65_537, 200_000])
def test_a_stretch_of_a_permutation_is_spread_evenly(n: int) -> None:
    """Within one permutation, the first half lands in 50 parts of the domain as a draw without
    repeats does.
    """
    for key in range(5):
        half = randomness.permutation(n, randomness.fold("test", key))[: n // 2]
        counts, size = np.bincount(half * 50 // n, minlength=50), n / 50
        chi_square = float(
            ((counts - size / 2) ** 2).sum() / (size / 4)
        )  # half of each cell, drawn without repeats
        assert abs(chi_square - 49) < 5 * 98**0.5


def test_keys_give_different_permutations() -> None:
    """Neighbouring keys, sizes, and both sides of the sorted limit share nothing visible."""
    for n in (50, 70_000):
        images = [randomness.permutation(n, key) for key in range(6)]
        fixed = [int((a == b).sum()) for k, a in enumerate(images) for b in images[:k]]
        assert max(fixed) < 8


def test_domains_and_parts_make_different_keys() -> None:
    """A key differs with its domain, every part, their number and their order; integers count
    modulo 2**64.
    """
    made = [
        randomness.fold(*parts)
        for domain in ("blocks", "rotation", "window", "augment", "", "block", "blockss")
        for parts in (
            (domain,),
            (domain, 0),
            (domain, 0, 0),
            (domain, 1, 2),
            (domain, 2, 1),
            (domain, -1),
            (domain, 3),
        )
    ]
    assert len(set(made)) == len(made)
    assert all(0 <= key < 2**64 for key in made)
    assert randomness.fold("a", -1, 2**64 + 5) == randomness.fold("a", 2**64 - 1, 5)


@settings(max_examples=50)
@given(st.tuples(*[st.integers(-(2**65), 2**65)] * 5), st.integers(0, 4))
def test_a_generator_is_its_parts(parts: tuple[int, ...], changed: int) -> None:
    """Equal parts give equal numbers; a change of any part gives other numbers."""
    draws = randomness.generator(*parts).random(4).tolist()
    assert randomness.generator(*parts).random(4).tolist() == draws
    others = list(parts)
    others[changed] += 1
    assert not set(randomness.generator(*others).random(4).tolist()) & set(draws)


def test_generators_of_neighbours_are_even_together() -> None:
    """The first numbers of 20,000 samples' generators fill 100 parts of [0, 1) evenly."""
    firsts = [randomness.generator(17, 0, 0, ordinal, 1).random() for ordinal in range(20_000)]
    assert even(np.bincount((np.array(firsts) * 100).astype(np.int64), minlength=100))
