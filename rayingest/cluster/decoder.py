"""The decoder actor: turns raw blocks into parts of batches, one CPU's worth.

Owns no policy; knows streams by key. A part that cannot be made is answered with its error, beside the others' results.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from rayingest.errors import IngestError
from rayingest.plan.events import PartDone
from rayingest.plan.protocols import Columns
from rayingest.stream import Rows, Work


@dataclass(frozen=True)
class PartOrder:
    """Rows to decode. `whole`: they are all of their step, so that a collate of the user can be applied already."""

    rows: Rows
    whole: bool


@dataclass(frozen=True)
class Decoded:
    """What a decode took and gave, without the data: small enough to travel beside the object store."""

    parts: tuple[PartDone, ...]
    seconds: float


class Decoder:
    """`decode` gives 2 objects: `Decoded`, and the parts' columns (or samples, where a collate has to wait)."""

    def __init__(self) -> None:
        self._work: dict[str, Work] = {}

    def node(self) -> str:
        """The node this runs on; an answer also tells that it runs."""
        return str(ray.get_runtime_context().get_node_id())

    def register(self, key: str, work: Work) -> None:
        """From now on, `key` means this stream."""
        self._work[key] = work

    def forget(self, key: str) -> None:
        """The stream has ended."""
        self._work.pop(key, None)

    def decode(self, key: str, orders: list[PartOrder], *tables: pa.Table) -> tuple[Decoded, list[Any]]:
        """The parts ordered, made from these blocks."""
        begun = time.perf_counter()
        work = self._work[key]
        pipeline = work.pipeline
        parts, results = [], []
        for order in orders:
            result: Columns | list[dict[str, Any]] | None = None
            try:
                samples, bad = order.rows.samples(work, tables)
                wait = pipeline.collate is not None and (bad or not order.whole)
                result = list(samples) if wait else pipeline.finish(samples)
                parts.append(PartDone(_size(result), bad=tuple(bad.items())))
            except IngestError as error:
                parts.append(PartDone(0, error))
            results.append(result)
        return Decoded(tuple(parts), time.perf_counter() - begun), results


def _size(value: Any) -> int:
    """Bytes of a value's data, near enough."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value)) + 8 * len(value)
    return len(value) + 40 if isinstance(value, (str, bytes)) else 32
