"""Read a log or a message queue: records without an end, as a `RecordStream`.

Owns what `ri.stream` takes; how records are read is the business of `execute.unbounded`. Nothing
is committed to the source: `loader.state_dict()` holds the offsets of all partitions.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from rayingest.api.data import Data
from rayingest.build.compatibility import Feature
from rayingest.build.records import Records
from rayingest.execute.unbounded.partitions import Source, Unpickle
from rayingest.options import Function, Seed, checked, option_type
from rayingest.transforms.stages import Map


def _partition_names(value: Any) -> int | tuple[str, ...]:
    if isinstance(value, (str, bool)):
        raise TypeError
    if not isinstance(value, Iterable):
        count = operator.index(value)
        if count < 1:
            raise ValueError
        return count
    names = tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise TypeError
    if not names or len(set(names)) < len(names):
        raise ValueError
    return names


PartitionNames = Annotated[
    int | Sequence[str],
    option_type(
        "a number of partitions, 1 or more, or a list of different names", _partition_names
    ),
]


@checked()
def stream(open_at: Function, *, partitions: PartitionNames = 1, seed: Seed = 0) -> RecordStream:
    """Read records without an end: from a log, a message queue, or any source that can be resumed.

    Records come from the partitions in turn, one of each; a partition that has ended is left out.
    The order depends on nothing else: not on time, workers or ranks. So a silent partition holds
    the others up. A batch comes as soon as its records are there. When all partitions have ended,
    the pass ends; records that do not fill a batch come with the next pass.

    A state holds each partition's offset behind the batch in hand, and the fields. Each rank reads
    all partitions and keeps its rows of every batch, so a run may go on with another number of
    ranks. There is one epoch: every `for` goes on where the last one ended, and `len` of a loader
    raises TypeError.

    Args:
        open_at: a function `open_at(partition, offset)` that returns an iterator of pairs
            (sample, offset): a dict of fields, and the offset of the next record, any value that
            JSON has. The first offset is None, which must be the same place for all ranks; later
            ones are offsets that it gave, from which it must give the same records again. It may
            block until the next record is there, or give None while there is none. Where the
            iterator ends, the partition has no more records for now.
        partitions: their names, or their number; they are then called 0, 1, and so on.
        seed: of the random numbers of later stages, keyed by a record's place in the stream.
    """
    names = range(partitions) if isinstance(partitions, int) else partitions
    source = Source(open_at, tuple(names))
    return RecordStream(Records(source, stages=(Map(Unpickle(source)),), seed=seed))


@dataclass(frozen=True, repr=False)
class RecordStream(Data[Records]):
    """Records without an end, and what is done with them; `stream` makes it."""

    _kind: ClassVar[Feature] = Feature.STREAM
