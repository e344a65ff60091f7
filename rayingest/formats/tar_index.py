"""Read indexes beside WebDataset tars, which save a pass over the tars.

Owns two formats: Energon's `X.tar.idx`, a table of where samples begin
(https://github.com/NVIDIA/Megatron-Energon), and DALI's `X.idx` from `wds2idx`, a line per sample
(https://github.com/NVIDIA/DALI). An index that does not fit its tar is logged and not used. Of the
tar, only the part before the first sample and the last sample are checked; errors between them show
when the samples are read.
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
    """Begins and ends of samples in the tar, and the bytes of their files: int64[n] each."""

    begins: np.ndarray
    ends: np.ndarray
    nbytes: np.ndarray


def read_foreign_index(shard: Shard, samples_in: Callable[[int, int], int]) -> Samples | None:
    """Return what an index beside the tar says, or None if there is no usable one.

    `samples_in(begin, end)` counts the samples of a range, up to 2. It raises DataError if the
    places are no headers.
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
                "the index %s is ignored, and the tar is read instead: %s", redact(index), error
            )
        else:
            return samples
    return None


def blame_foreign_index(shard: Shard, error: DataError) -> DataError:
    """Return the error, which names the index beside the tar as another possible cause."""
    index = None
    with suppress(IngestError):  # the first error matters, not this one
        index = None if error.transient else next((index for index, *_ in _beside(shard)), None)
    if index is None:
        return error
    return error.with_reason(
        f"{error.reason}; or the index {redact(index)}, from which the offsets come, belongs to "
        "another tar: "
        "then remove it, and the cached index that was built with it"
    )


def _beside(shard: Shard) -> Iterator[tuple[str, bytes, Callable[[bytes], Samples]]]:
    """Yield URL, contents and parser of each index beside the tar."""
    url = shard.url
    if not url.lower().endswith(".tar"):  # with a signed URL, no other file can be read
        return
    for index, parse in ((url + ".idx", _energon), (url[: -len(".tar")] + ".idx", _dali)):
        if (data := shard.storage.read_if_exists(index)) is not None:
            yield index, data, parse


def _energon(data: bytes) -> Samples:
    """Parse a table of u64: the begin of each sample, and the end of the last."""
    places = np.frombuffer(data, "<u8").astype(np.int64)
    return Samples(places[:-1], places[1:], np.diff(places))


def _dali(data: bytes) -> Samples:
    """Parse a line with version and number of samples, then a line per sample.

    A line gives extension, offset and size (from version 1.2 on, the name too) of each file,
    separated by spaces.
    """
    version, *lines = data.decode().splitlines()
    width = {"v1.1": 3, "v1.2": 4}.get(version.partition(" ")[0], 0)
    if not width or int(version.partition(" ")[2]) != len(lines):
        raise ValueError(
            f"its first line, {version[:40]!r}, has an unknown version, or its number of samples "
            f"is not {len(lines)}, the number of lines that follow"
        )
    ends, nbytes = [], []
    for line in lines:
        words = line.split(" ")
        if len(words) % width:
            raise ValueError("it has names with spaces, which are ambiguous")
        sizes = [int(size) for size in words[2::width]]
        ends.append(int(words[-width + 1]) + -(-sizes[-1] // BLOCK) * BLOCK)
        nbytes.append(sum(sizes))
    return Samples(
        np.array([0, *ends[:-1]], np.int64), np.array(ends, np.int64), np.array(nbytes, np.int64)
    )


def _check(samples: Samples, size: int) -> None:
    begins, ends, _ = samples
    if not len(ends):
        raise ValueError("it lists no sample")
    last = int(ends[-1])
    if (begins >= ends).any() or (begins[1:] < ends[:-1]).any() or begins[0] < 0 or last > size:
        raise ValueError(f"its offsets are out of order, or past the end of the tar at {size}")
    if (begins % BLOCK).any() or (ends % BLOCK).any():
        raise ValueError(f"its offsets are not multiples of {BLOCK}, as those of tar headers are")


def _check_outermost(samples: Samples, samples_in: Callable[[int, int], int]) -> None:
    begins, ends, _ = samples
    if samples_in(0, int(begins[0])):
        raise ValueError(f"the tar has samples before its first offset, {begins[0]}")
    if samples_in(int(begins[-1]), int(ends[-1])) != 1:
        raise ValueError(
            f"it lists one sample from {begins[-1]} to {ends[-1]}, and the tar does not have "
            "exactly one there"
        )
