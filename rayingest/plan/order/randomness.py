"""Keyed hashes and permutations: all randomness of the order and of each sample's transforms.

SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) is the only
mixer. There are no streams and no state: entry i of anything is computed from i and a key, in any
order. Integers stand for unsigned 64-bit words.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_A, _MIX_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ROUNDS = 6
MAX_SORTED = 65_536
"""Up to this size a permutation is a sort of keyed hashes; above, sorting costs too much, and it is
a Feistel network."""


def mix64(word: int) -> int:
    """Mix one word by SplitMix64's finaliser, a bijection on 64-bit words."""
    word = ((word ^ (word >> 30)) * _MIX_A) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_B) & _WORD
    return word ^ (word >> 31)


def mix64_array(words: np.ndarray) -> np.ndarray:
    """Return `mix64` of every entry of a uint64 array."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MIX_A)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MIX_B)
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=64)
def _tag(domain: str) -> int:
    word = 0
    for byte in domain.encode():
        word = mix64((word + byte + _GAMMA) & _WORD)
    return word


def fold(domain: str, *parts: int) -> int:
    """Return a key made of integers (taken modulo 2**64), different in every domain."""
    word = _tag(domain)
    for part in parts:
        word = mix64((word + _GAMMA) & _WORD ^ mix64(part & _WORD))
    return word


def hashes(count: int, key: int) -> np.ndarray:
    """Return distinct keyed hashes of 0 to count - 1; uint64[count].

    They are the outputs of SplitMix64 seeded with the key.
    """
    return hashes_at(np.arange(count), np.uint64(key))


def hashes_at(index: np.ndarray, keys: np.ndarray | np.uint64) -> np.ndarray:
    """Return entries `index` (0 or more) of `hashes` with a key, or with a key for each; uint64."""
    return mix64_array(keys + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA))


def permutation(n: int, key: int) -> np.ndarray:
    """Return the whole of `permute`'s bijection; int64[n]."""
    if n <= MAX_SORTED:
        return np.argsort(hashes(n, key)).astype(np.int64, copy=False)
    return _feistel(np.arange(n, dtype=np.int64), np.array([n]), np.array([key], np.uint64))


def permute(i: int | np.ndarray, n: int | np.ndarray, key: int | np.ndarray) -> np.ndarray:
    """Return where a keyed bijection on [0, n) sends i.

    `i`, `n` and `key` are one integer or an array each, and broadcast; the result is int64 of their
    common shape. Raises IndexError for an i outside its [0, n).
    """
    index, sizes, keys = np.broadcast_arrays(
        np.asarray(i, np.int64), np.asarray(n, np.int64), np.asarray(key, np.uint64)
    )
    if index.size and not (index.min() >= 0 and (index < sizes).all()):
        raise IndexError(f"index {index.min()}..{index.max()} outside [0, {sizes.min()})")
    if np.ndim(n) == np.ndim(key) == 0 and int(n) > MAX_SORTED:
        return _feistel(index.ravel(), np.array([n]), np.array([key], np.uint64)).reshape(
            index.shape
        )
    result = np.empty(index.shape, np.int64)
    large = sizes > MAX_SORTED
    if large.any():
        result[large] = _feistel(index[large], sizes[large], keys[large])
    for size, one in sorted(set(zip(sizes[~large].tolist(), keys[~large].tolist(), strict=True))):
        chosen = (sizes == size) & (keys == one)
        result[chosen] = permutation(size, one)[index[chosen]]
    return result


def _feistel(index: np.ndarray, n: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Apply balanced Feistel networks on the smallest even number of bits that holds n.

    A result outside [0, n) is sent on until it is inside.

    `n` and `keys` have one entry, or one for each of `index`.
    """
    sizes = n.astype(np.uint64)
    half = np.array([(int(size) - 1).bit_length() + 1 >> 1 for size in np.unique(n)], np.uint64)[
        _ranks(n)
    ]
    mask = (np.uint64(1) << half) - np.uint64(1)
    rounds = [mix64_array(keys + np.uint64(((r + 1) * _GAMMA) & _WORD)) for r in range(_ROUNDS)]
    tables: list[np.ndarray] = []
    if len(n) == 1 and len(index) > int(
        mask[0]
    ):  # hashing every half once is less work than every index six times
        halves = np.arange(int(mask[0]) + 1, dtype=np.uint64)
        tables = [mix64_array(halves + round_key) & mask for round_key in rounds]
    result = index.astype(np.uint64)
    outside: np.ndarray | slice = slice(None)
    while True:
        words = result[outside]
        at = outside if len(n) > 1 else slice(None)
        low, bits = mask[at], half[at]
        left, right = words >> bits, words & low
        for r in range(_ROUNDS):
            hashed = (
                tables[r].take(right.view(np.int64))
                if tables
                else mix64_array(right + rounds[r][at]) & low
            )
            left, right = right, left ^ hashed
        result[outside] = (left << bits) | right
        outside = np.flatnonzero(result >= sizes)
        if not len(outside):
            return result.astype(np.int64)


def _ranks(n: np.ndarray) -> np.ndarray:
    """Return each entry's rank among the distinct entries."""
    return np.unique(n, return_inverse=True)[1]


class _Key(np.random.bit_generator.ISeedSequence):
    """A key as a seed sequence: a bit generator from it costs a fifth of `Philox(key=...)`."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> np.ndarray:
        return self._words


def generator(seed: int, epoch: int, source: int, ordinal: int, stage: int) -> np.random.Generator:
    """Return the random numbers of one stage for one sample.

    They are the same wherever and however often the sample is decoded: a Philox (Salmon et al.,
    "Parallel random numbers: as easy as 1, 2, 3", 2011) with a 128-bit key of the parts.
    """
    word = fold("augment", seed, epoch, source, ordinal, stage)
    key: Any = _Key(
        np.array([word, mix64(word ^ _GAMMA)], np.uint64)
    )  # numpy's stubs know only its own sequences
    return np.random.Generator(np.random.Philox(key))
