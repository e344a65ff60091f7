"""The decoder actor: turns raw blocks into parts of batches, one CPU's worth.

Owns no policy; knows streams by key. A part that cannot be made is answered with its error, beside the others' results.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from rayingest.errors import DataError, IngestError
from rayingest.execute.cluster.node_info import Site, Usage, here, own_usage
from rayingest.execute.cluster.serialization import check_sendable
from rayingest.execute.work import Head, Parts, Work
from rayingest.plan.dispatch.events import PartDone
from rayingest.plan.protocols import Columns
from rayingest.transforms.open_block import OpenBlock

CONTROL = "control"
"""Calls of this group are answered at once, on a thread of their own, however long a decode takes."""


@dataclass(frozen=True)
class BlockNote:
    """What a decode is told of blocks, by serials: those it works on, those that come along, in the order of the
    arguments, and those that will not be needed any more.
    """

    serials: tuple[int, ...]
    coming: tuple[int, ...]
    leaving: tuple[int, ...]


@dataclass(frozen=True)
class Decoded:
    """What a decode took and gave, without the data: small enough to travel beside the object store."""

    parts: tuple[PartDone, ...]
    seconds: float


class Decoder:
    """`decode` gives 2 objects: `Decoded`, and the parts' columns (or samples, where these have to wait for others).

    It keeps the blocks that it was given until it is told to let them go: many tasks take samples from each, and
    handing one over takes as long as decoding a tenth of a photograph.
    """

    def __init__(self) -> None:
        self._work: dict[str, Work] = {}
        self._blocks: dict[str, dict[int, OpenBlock]] = {}

    def site(self) -> Site:
        """Where this runs; an answer also tells that it runs."""
        return here()

    @ray.method(concurrency_group=CONTROL)
    def usage(self) -> Usage:
        """What this process takes."""
        return own_usage()

    def learn(self, work: Work, heads: list[Head]) -> Work:
        """The same work with the schema of its samples."""
        return work.learnt(heads)

    def register(self, key: str, work: Work) -> None:
        """From now on, `key` means this stream."""
        self._work[key], self._blocks[key] = work, {}

    def forget(self, key: str) -> None:
        """The stream has ended."""
        self._work.pop(key, None)
        self._blocks.pop(key, None)

    @ray.method(concurrency_group=CONTROL)
    def let_go(self, key: str, serials: tuple[int, ...]) -> None:
        """These blocks will not be needed any more."""
        self._drop(key, serials)

    def decode(
        self,
        key: str,
        parts: Parts,
        whole: tuple[bool, ...],
        room: int,
        note: BlockNote,
        *coming: pa.Table,
    ) -> tuple[Decoded, Iterable[Any]]:
        """The parts, made from blocks that come along and blocks kept; nothing for a stream forgotten.

        Those that would go beyond `room` bytes are left. `whole`: which parts are all of their step, so that what needs
        it whole can be done already.
        """
        begun = time.perf_counter()
        if key not in self._work:  # nobody awaits the answer any more, and Ray would log an error
            return Decoded((), 0.0), []
        self._drop(key, note.leaving)
        blocks, work = self._blocks[key], self._work[key]
        blocks.update(zip(note.coming, map(work.open, coming), strict=True))
        needed = [blocks[serial] for serial in note.serials]
        made: tuple[Sequence[PartDone], Iterable[Any]]
        joined = parts.columns(work, needed)
        if joined is not None:
            sizes = [_size(columns) for columns in joined]
            fit = bisect_right([*itertools.accumulate(sizes)], room)
            made = (
                [PartDone(size, left=place >= fit) for place, size in enumerate(sizes)],
                joined.first(fit),
            )
        else:
            made = _each(work, parts, whole, room, needed)
        return Decoded(tuple(made[0]), time.perf_counter() - begun), made[1]

    def _drop(self, key: str, serials: tuple[int, ...]) -> None:
        blocks = self._blocks.get(key, {})
        for serial in serials:
            blocks.pop(serial, None)


def _each(
    work: Work, parts: Parts, whole: tuple[bool, ...], room: int, blocks: list[OpenBlock]
) -> tuple[list[PartDone], list[Any]]:
    """The parts one by one, up to the first for which there is no room."""
    pipeline = work.pipeline
    done: list[PartDone] = []
    results: list[Any] = []
    for rows, is_whole in zip(parts, whole, strict=True):
        if done and done[-1].left:
            done.append(PartDone(0, left=True))
            continue
        result: Columns | list[dict[str, Any]] | None
        try:
            bad: dict[int, DataError] = {}
            result = rows.columns(work, blocks)
            if result is None:
                samples, bad = rows.samples(work, blocks)
                wait = pipeline.needs_whole_steps and (bad or not is_whole)
                result = list(samples) if wait else pipeline.finish(samples, rows.layout)
                check_sendable(result, rows, bad, blocks)
            room -= (size := _size(result))
            done.append(PartDone(size, bad=tuple(bad.items()), left=room < 0))
        except IngestError as error:
            result = None  # which may be what cannot be sent
            done.append(PartDone(0, error))
        if not done[-1].left:
            results.append(result)
    return done, results


def _size(value: Any) -> int:
    """Bytes of a value's data, near enough."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value)) + 8 * len(value)
    return len(value) + 40 if isinstance(value, (str, bytes)) else 32
