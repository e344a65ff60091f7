"""Assemble the outputs of decodes into one batch in one buffer.

The feeder's thread calls it. On this path it is the only copy of the data in host memory of the
training process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rayingest.execute.stream import Stream
from rayingest.plan.order.step_samples import StepSamples
from rayingest.plan.protocols import Batch, BufferPool, Columns, array_bytes
from rayingest.transforms.collate import assemble

Part = tuple[np.ndarray, Any]
"""Numbers of some of a step's rows, and their data: columns, or a list of samples."""


def assemble_batch(
    stream: Stream, samples: StepSamples, parts: Sequence[Part], buffers: BufferPool
) -> Batch:
    """Return the batch of a step, with its arrays in a buffer of the pool."""
    if isinstance(parts[0][1], list):
        parts = [_finish(stream, samples, parts)]
    if samples.layout is not None:
        return _packed_batch(stream, samples, parts[0][1], buffers)
    total = len(samples.block)
    buffer = buffers.lease(sum(_array_bytes(columns, total) for columns in _by_field(parts)))
    # A single part has all rows in order: a slice copies them faster than their numbers.
    placed = [(slice(None), parts[0][1])] if len(parts) == 1 else parts
    columns = assemble(placed, total, buffer.array, stream.work.pipeline.padding)
    return Batch(samples.epoch, samples.step, stream.complete(samples, columns), buffer)


def _packed_batch(
    stream: Stream, samples: StepSamples, columns: Columns, buffers: BufferPool
) -> Batch:
    """Copy columns of packed rows as they are: a packed row is not one sample."""
    buffer = buffers.lease(array_bytes(columns))
    copied: Columns = {}
    for name, column in columns.items():
        assert isinstance(column, np.ndarray)
        out = buffer.array(column.shape, column.dtype)
        out[...] = column
        copied[name] = out
    return Batch(samples.epoch, samples.step, stream.complete(samples, copied), buffer)


def _finish(stream: Stream, samples: StepSamples, parts: Sequence[Part]) -> Part:
    """Collate samples that had to wait until their step is whole."""
    by_row = {
        row: sample for rows, some in parts for row, sample in zip(rows.tolist(), some, strict=True)
    }
    in_order = [by_row[row] for row in sorted(by_row)]
    columns = stream.work.pipeline.finish(in_order, samples.layout, samples.first)
    return np.arange(len(in_order)), columns


def _by_field(parts: Sequence[Part]) -> list[list[Any]]:
    """Return, for each field that is an array, the arrays of all parts."""
    columns: list[Columns] = [columns for _, columns in parts]
    fields = (
        [part[name] for part in columns if isinstance(part.get(name), np.ndarray)]
        for name in columns[0]
    )
    return [arrays for arrays in fields if arrays]


def _array_bytes(arrays: Sequence[np.ndarray], rows: int) -> int:
    """Return the bytes of one array for all rows, with narrow arrays padded to the widest."""
    row = [max(lengths) for lengths in zip(*(array.shape[1:] for array in arrays), strict=True)]
    return rows * math.prod(row) * arrays[0].dtype.itemsize
