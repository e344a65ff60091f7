"""The decoder actor: turns raw blocks into parts of batches on one CPU.

Owns no policy; knows streams by key. If a part fails, its error takes its place in the result and
the other parts are returned.
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
from rayingest.execute.cluster.node_info import (
    NodeInfo,
    Usage,
    await_rays_end,
    own_node_info,
    own_usage,
)
from rayingest.execute.cluster.object_refs import BlockMessage
from rayingest.execute.cluster.serialization import check_serializable
from rayingest.execute.work import Head, TaskRows, Work
from rayingest.plan.dispatch.events import PartDone
from rayingest.plan.protocols import Columns
from rayingest.transforms.open_block import OpenBlock
from rayingest.transforms.schema import Schema
from rayingest.transforms.torch.worker_info import Worker, set_own_worker

CONTROL = "control"
"""The concurrency group whose calls run on a thread of their own, however long a decode takes."""


@dataclass(frozen=True)
class DecodeResult:
    """The result of a decode, without the data: small, so it travels beside the object store."""

    parts: tuple[PartDone, ...]
    seconds: float


class Decoder:
    """Its `decode` returns 2 objects: a `DecodeResult`, and a list of the parts' columns.

    A part is a list of samples instead where its step must be whole before it becomes columns. The
    decoder keeps the blocks that it receives until a message releases them: many tasks take samples
    from one block, and receiving it takes as long as decoding a tenth of a photograph.
    """

    def __init__(self) -> None:
        await_rays_end()
        self._work: dict[str, Work] = {}
        self._blocks: dict[str, dict[int, OpenBlock]] = {}

    def node_info(self) -> NodeInfo:
        """Return where this actor runs. The result also shows that it has started."""
        return own_node_info()

    @ray.method(concurrency_group=CONTROL)
    def usage(self) -> Usage:
        """Return what this process uses."""
        return own_usage()

    def learn(self, work: Work, worker: Worker, heads: list[Head]) -> Schema:
        """Return the schema of the samples, and no part of the work.

        The user's code has run on this copy of the work, which may hold open files and connections.
        """
        set_own_worker(worker)
        return work.learn_schema(heads)

    def register(self, key: str, work: Work, worker: Worker, schema: Schema | None) -> None:
        """Accept decodes of the stream `key`, whose samples have this schema, from now on.

        `worker` is the number of this decoder among those of the stream.
        """
        set_own_worker(worker)
        self._work[key] = work if schema is None else work.with_schema(schema)
        self._blocks[key] = {}

    def forget(self, key: str) -> None:
        """End the stream `key`."""
        self._work.pop(key, None)
        self._blocks.pop(key, None)

    @ray.method(concurrency_group=CONTROL)
    def release(self, key: str, serials: tuple[int, ...]) -> None:
        """Drop blocks that no further task needs."""
        blocks = self._blocks.get(key, {})
        for serial in serials:
            blocks.pop(serial, None)

    def decode(
        self,
        key: str,
        parts: TaskRows,
        whole: tuple[bool, ...],
        room: int,
        message: BlockMessage,
        *sent: pa.Table,
    ) -> tuple[DecodeResult, Iterable[Any]]:
        """Decode the parts from blocks that come with the call and blocks kept here.

        `whole` says which parts are all of their step. Parts beyond `room` bytes together are left
        for another task. Returns no parts if the stream has ended.
        """
        begun = time.perf_counter()
        if key not in self._work:  # no caller reads the result, and Ray would log an error
            return DecodeResult((), 0.0), []
        self.release(key, message.released)
        blocks, work = self._blocks[key], self._work[key]
        blocks.update(zip(message.sent, map(work.open, sent), strict=True))
        needed = [blocks[serial] for serial in message.uses]
        done: Sequence[PartDone]
        results: Iterable[Any]
        joined = parts.columns(work, needed)
        if joined is None:
            done, results = _decode_each(work, parts, whole, room, needed)
        else:
            sizes = [_nbytes(columns) for columns in joined]
            fit = bisect_right([*itertools.accumulate(sizes)], room)
            done = [PartDone(size, left_out=place >= fit) for place, size in enumerate(sizes)]
            results = joined.first(fit)
        return DecodeResult(tuple(done), time.perf_counter() - begun), results


def _decode_each(
    work: Work, parts: TaskRows, whole: tuple[bool, ...], room: int, blocks: list[OpenBlock]
) -> tuple[list[PartDone], list[Any]]:
    """Decode the parts one by one, up to the first that exceeds the room."""
    pipeline = work.pipeline
    done: list[PartDone] = []
    results: list[Any] = []
    for rows, is_whole in zip(parts, whole, strict=True):
        if done and done[-1].left_out:
            done.append(PartDone(0, left_out=True))
            continue
        result: Columns | list[dict[str, Any]] | None
        try:
            bad: dict[int, DataError] = {}
            result = rows.columns(work, blocks)
            if result is None:
                samples, bad = rows.samples(work, blocks)
                wait = pipeline.needs_whole_steps and (bad or not is_whole)
                result = (
                    list(samples) if wait else pipeline.finish(samples, rows.layout, rows.first)
                )
                check_serializable(result, rows, bad, blocks)
            room -= (size := _nbytes(result))
            done.append(PartDone(size, bad=tuple(bad.items()), left_out=room < 0))
        except IngestError as error:
            result = None  # it may be the value that cannot be sent
            done.append(PartDone(0, error))
        if not done[-1].left_out:
            results.append(result)
    return done, results


def _nbytes(value: Any) -> int:
    """Estimate the bytes of a value's data."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_nbytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_nbytes, value)) + 8 * len(value)
    return len(value) + 40 if isinstance(value, (str, bytes)) else 32
