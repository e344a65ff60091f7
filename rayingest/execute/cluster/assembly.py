"""From the parts that decoders made to one batch in one buffer: the only copy of the data in the training process."""

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
"""Numbers of some of a step's rows, and what a decoder made of them."""


def assemble_batch(
    stream: Stream, samples: StepSamples, parts: Sequence[Part], buffers: BufferPool
) -> Batch:
    """The batch of a step, from parts that are columns, or lists of samples that are yet to be put together."""
    if isinstance(parts[0][1], list):
        parts = [_put_together(stream, samples, parts)]
    if samples.layout is not None:
        return _packed_batch(stream, samples, parts[0][1], buffers)
    total = len(samples.block)
    buffer = buffers.lease(sum(_array_bytes(columns, total) for columns in _by_field(parts)))
    placed = (
        [(slice(None), parts[0][1])] if len(parts) == 1 else parts
    )  # rows in order are copied as they lie
    columns = assemble(placed, total, buffer.array, stream.work.pipeline.padding)
    return Batch(samples.epoch, samples.step, stream.complete(samples, columns), buffer)


def _packed_batch(
    stream: Stream, samples: StepSamples, columns: Columns, buffers: BufferPool
) -> Batch:
    """Columns of packed rows are those of the batch, whose rows are not the step's samples."""
    buffer = buffers.lease(array_bytes(columns))
    copied: Columns = {}
    for name, column in columns.items():
        assert isinstance(column, np.ndarray)
        out = buffer.array(column.shape, column.dtype)
        out[...] = column
        copied[name] = out
    return Batch(samples.epoch, samples.step, stream.complete(samples, copied), buffer)


def _put_together(stream: Stream, samples: StepSamples, parts: Sequence[Part]) -> Part:
    by_row = {
        row: sample for rows, some in parts for row, sample in zip(rows.tolist(), some, strict=True)
    }
    in_order = [by_row[row] for row in sorted(by_row)]
    return np.arange(len(in_order)), stream.work.pipeline.finish(in_order, samples.layout)


def _by_field(parts: Sequence[Part]) -> list[list[Any]]:
    """For each field that is an array, the arrays of all parts."""
    columns: list[Columns] = [columns for _, columns in parts]
    fields = (
        [part[name] for part in columns if isinstance(part.get(name), np.ndarray)]
        for name in columns[0]
    )
    return [arrays for arrays in fields if arrays]


def _array_bytes(arrays: Sequence[np.ndarray], rows: int) -> int:
    """Bytes of the array that holds these arrays' rows, the narrow ones padded to the widest."""
    row = [max(lengths) for lengths in zip(*(array.shape[1:] for array in arrays), strict=True)]
    return rows * math.prod(row) * arrays[0].dtype.itemsize
