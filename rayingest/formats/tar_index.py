"""Indexes that lie beside tars of WebDataset, so that these need not be looked through for their samples.

Owns two formats: Energon's `X.tar.idx`, a table of where samples begin (https://github.com/NVIDIA/Megatron-Energon),
and the `X.idx` of DALI's `wds2idx`, a line a sample (https://github.com/NVIDIA/DALI). An index that cannot be of the
tar as it is now is warned of, and not used. Of the tar is looked at what is before its first sample, and its last;
whether it is right of those between is seen when they are read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from rayingest.errors import DataError, IngestError
from rayingest.formats.protocol import Shard
from rayingest.formats.tar import BLOCK
from rayingest.storage.redact import redact

_log = logging.getLogger("rayingest")


class Samples(NamedTuple):
    """Where samples begin and end in the tar, and the bytes of their files: int64 arrays of one length."""

    begins: np.ndarray
    ends: np.ndarray
    nbytes: np.ndarray


def read_foreign_index(shard: Shard, samples_in: Callable[[int, int], int]) -> Samples | None:
    """What an index beside the tar says; None where there is none that can be used.

    `samples_in` tells how many samples there are between two places of the tar, two where there are more; DataError
    where these are not places of headers.
    """
    for index, data, parse in _beside(shard):
        try:
            samples = parse(data)
            _check(samples, shard.size)
            _check_outermost(samples, samples_in)
        except (ValueError, IndexError, DataError) as error:
            if isinstance(error, DataError) and error.transient:
                raise
            _log.warning(
                "the index %s is not used, and the tar looked through: %s", redact(index), error
            )
        else:
            return samples
    return None


def blame_foreign_index(shard: Shard, error: DataError) -> DataError:
    """What was wrong when samples were read, with the index that may be to blame, where one lies beside the tar."""
    index = None
    with suppress(IngestError):  # it is the first error that matters
        index = None if error.transient else next((index for index, *_ in _beside(shard)), None)
    if index is None:
        return error
    return error.saying(
        f"{error.reason}; or the index {redact(index)}, which says where its samples are, is of another tar: then "
        "remove it and the kept index that was made with it"
    )


def _beside(shard: Shard) -> Iterator[tuple[str, bytes, Callable[[bytes], Samples]]]:
    """The indexes that there are: URL, contents, how they are read."""
    url = shard.url
    if not url.lower().endswith(".tar"):  # of a signed address, another file cannot be had
        return
    for index, parse in ((url + ".idx", _energon), (url[: -len(".tar")] + ".idx", _dali)):
        if (data := shard.storage.read_if_exists(index)) is not None:
            yield index, data, parse


def _energon(data: bytes) -> Samples:
    """u64 each: where samples begin, and where the last ends."""
    places = np.frombuffer(data, "<u8").astype(np.int64)
    return Samples(places[:-1], places[1:], np.diff(places))


def _dali(data: bytes) -> Samples:
    """A line with the version and the number of samples; then of each sample extension, offset, size (and from version
    1.2 on name) of each of its files, apart by spaces.
    """
    version, *lines = data.decode().splitlines()
    width = {"v1.1": 3, "v1.2": 4}.get(version.partition(" ")[0], 0)
    if not width or int(version.partition(" ")[2]) != len(lines):
        raise ValueError(
            f"its first line, {version[:40]!r}, is not of a known version, or not of {len(lines)} samples"
        )
    ends, nbytes = [], []
    for line in lines:
        words = line.split(" ")
        if len(words) % width:
            raise ValueError("names with spaces cannot be told apart in it")
        sizes = [int(size) for size in words[2::width]]
        ends.append(int(words[-width + 1]) + -(-sizes[-1] // BLOCK) * BLOCK)
        nbytes.append(sum(sizes))
    return Samples(
        np.array([0, *ends[:-1]], np.int64), np.array(ends, np.int64), np.array(nbytes, np.int64)
    )


def _check(samples: Samples, size: int) -> None:
    begins, ends, _ = samples
    if not len(ends):
        raise ValueError("it has no sample")
    last = int(ends[-1])
    if (begins >= ends).any() or (begins[1:] < ends[:-1]).any() or begins[0] < 0 or last > size:
        raise ValueError(f"its places are out of order, or behind the end of the tar at {size}")
    if (begins % BLOCK).any() or (ends % BLOCK).any():
        raise ValueError("its places are not those of headers")


def _check_outermost(samples: Samples, samples_in: Callable[[int, int], int]) -> None:
    begins, ends, _ = samples
    if samples_in(0, int(begins[0])):
        raise ValueError(f"samples of the tar are before its first place, {begins[0]}")
    if samples_in(int(begins[-1]), int(ends[-1])) != 1:
        raise ValueError(f"from {begins[-1]} to {ends[-1]} it has one sample, and the tar has not")
