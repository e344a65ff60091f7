"""Merge the partitions of an unbounded source: one record of each in turn, cut into steps.

Owns the order of the records, a function of the partitions' contents alone, and the iterators that
a process has open. A partition that has ended is left out from then on. The table of each step
carries the mark after it: the partition whose turn is next, and each partition's offset.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rayingest.errors import ConfigError, DataError, EndOfStreamError, IngestError
from rayingest.execute.work import Spans
from rayingest.plan.order.offsets import encode_mark
from rayingest.transforms.code_mark import code_mark
from rayingest.transforms.functions import name_of, user_line
from rayingest.transforms.raw_block import FILE, OFFSET
from rayingest.transforms.torch.iterables import pickle_sample

SAMPLE = "sample"
"""The column of pickled samples."""
_MARK = b"mark"
"""The key of the mark in a table's metadata."""
_AHEAD_STEPS, _AHEAD_BYTES = 16, 8 << 20
_END = object()
_PAIRS = "(sample, offset): a dict of fields, and where to continue after it"


@dataclass(frozen=True)
class Source:
    """A source of records: `open_at(name, offset)` opens one of the partitions.

    `batch` is the number of records of a step, all ranks together.
    """

    open_at: Callable[[Any, Any], Any]
    names: tuple[int | str, ...]
    batch: int = 1

    @property
    def label(self) -> str:
        """The name of `open_at`, for messages."""
        return name_of(self.open_at)


def mark_after(table: pa.Table) -> str:
    """Return the mark after a step's table."""
    return str(table.schema.metadata[_MARK].decode())


class Partitions:
    """Reads a source's steps from any mark on.

    A process has one reader open. With `ahead`, the reader runs ahead of the requests. A request
    for another position replaces it. Pickles without the reader.
    """

    def __init__(self, source: Source, ahead: bool = False) -> None:
        self.source, self.ahead = source, ahead
        self.__setstate__(self.__dict__)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("source", "ahead")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._reader: StepReader | ReadAhead | None = None

    def read(self, spans: Spans) -> list[pa.Table]:
        """Read one table per step; fewer if the next steps have not arrived yet.

        A span has the step as its size, the mark before it as its mark, and one block per step:
        (begin, end, count), the rows of the step to keep.

        Raises:
            IngestError: what is wrong with the first step, if not even that can be read.
            EndOfStreamError: all partitions have ended before the first step.
        """
        tables: list[pa.Table] = []
        for _, step, at, rows, *_ in spans:
            if not at:
                raise DataError(
                    "the records before these, in an earlier step, could not be read",
                    shard=self.source.label,
                    transient=True,
                )
            reader = self._reader_at(step, at, rows[0][:2])
            try:
                found = reader.take(len(rows))
            except BaseException as error:
                self._drop(reader)
                if tables and isinstance(error, IngestError):
                    return tables
                raise
            tables += found
            if len(found) < len(rows):
                break
        return tables

    def close(self) -> None:
        """Close the open reader."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _reader_at(self, step: int, at: str, rows: tuple[int, int]) -> StepReader | ReadAhead:
        with self._lock:
            old = self._reader
            if old is not None and (old.step, old.mark, old.rows) == (step, at, rows):
                return old
            new = StepReader(self.source, step, at, rows)
            self._reader = reader = ReadAhead(new) if self.ahead else new
        if old is not None:
            old.close()
        return reader

    def _drop(self, reader: StepReader | ReadAhead) -> None:
        with self._lock:
            self._reader = None if self._reader is reader else self._reader
        reader.close()


class StepReader:
    """Reads steps from a mark on; keeps the `rows` of each step and passes over the others.

    After an error it stands somewhere inside a step and must be dropped.

    Attributes:
        step: the next step.
        mark: the mark before it.
    """

    def __init__(self, source: Source, step: int, at: str, rows: tuple[int, int]) -> None:
        self.step, self.mark, self.rows = step, at, rows
        self.closed = False
        self._source = source
        self._turn, self._offsets = json.loads(at)
        count = len(source.names)
        # The partitions that have not ended, in the order of their turns.
        self._turns = deque((self._turn + i) % count for i in range(count))
        self._iterators: dict[int, Iterator[Any]] = {}
        self._current = self._turn

    def take(self, most: int = 1) -> list[pa.Table]:
        """Return the next step as a list of one table."""
        begin, end = self.rows
        samples, shards, offsets = [], [], []
        with self._locate_errors():
            for row in range(self._source.batch):
                sample, offset = self._next()
                number = self._current
                if begin <= row < end:
                    samples.append(pickle_sample(sample))
                    shards.append(self._shard(number))
                    offsets.append(self._offsets[number])
                self._offsets[number] = offset
                self._turn = (number + 1) % len(self._source.names)
                self._turns.append(number)
        self.step, self.mark = self.step + 1, self._mark_here()
        return [_table(samples, shards, offsets, self.mark)]

    def close(self) -> None:
        """Close the iterators that can be closed."""
        self.closed = True
        while self._iterators:
            _, iterator = self._iterators.popitem()
            if hasattr(iterator, "close"):
                with suppress(Exception):
                    iterator.close()

    def _next(self) -> tuple[Mapping[str, Any], Any]:
        """Wait for the next record, of partition `_current`; return it and the offset after it."""
        while self._turns:
            self._current = self._turns.popleft()
            if self._current not in self._iterators:
                self._iterators[self._current] = self._open(self._current)
            item = None
            while item is None:
                if self.closed:
                    raise EndOfStreamError(f"{self._source.label}: closed")
                item = next(self._iterators[self._current], _END)
            if item is not _END:
                return self._check(self._current, item)
        raise EndOfStreamError(f"{self._source.label}: all partitions have ended")

    def _open(self, number: int) -> Iterator[Any]:
        source, name, offset = self._source, self._source.names[number], self._offsets[number]
        records = source.open_at(name, offset)
        if not hasattr(records, "__iter__"):
            raise ConfigError(
                f"{source.label}({name!r}, {offset!r}) returned a {type(records).__name__}; "
                f"it must return an iterator of {_PAIRS}"
            )
        return iter(records)

    def _check(self, number: int, item: Any) -> tuple[Mapping[str, Any], Any]:
        if isinstance(item, tuple) and len(item) == 2:
            sample, offset = item
            if (
                offset is not None
                and isinstance(sample, Mapping)
                and all(isinstance(field, str) for field in sample)
            ):
                return sample, offset
        text = repr(item)
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise ConfigError(
            f"{self._source.label}: partition {self._source.names[number]!r} gave {shown}; its "
            f"items must be pairs {_PAIRS}"
        )

    def _mark_here(self) -> str:
        try:
            return encode_mark(self._turn, self._offsets)
        except (TypeError, ValueError):
            number = next(
                number for number, offset in enumerate(self._offsets) if not _is_json(offset)
            )
            name, offset = self._source.names[number], self._offsets[number]
            raise ConfigError(
                f"{self._source.label}: partition {name!r} gave the offset {offset!r}, a "
                f"{type(offset).__name__}, which JSON cannot hold; make it a number, text, or a "
                "list or dict of these"
            ) from None

    def _shard(self, number: int) -> str:
        return f"{self._source.label}/{self._source.names[number]}"

    @contextmanager
    def _locate_errors(self) -> Iterator[None]:
        """Turn any error of the user's code into a DataError with partition and offset."""
        try:
            yield
        except IngestError:
            raise
        except (Exception, SystemExit, GeneratorExit) as error:  # the last two would end a worker
            reason = f"{type(error).__name__}: {error}{user_line(error, self._source.open_at)}"
            shard, offset = self._shard(self._current), _show(self._offsets[self._current])
            raise DataError(
                f"reading {self._source.label}: {reason}",
                shard=shard,
                offset=offset,
                transient=True,
            ) from error


class ReadAhead:
    """Runs a reader on a thread of its own, ahead of the requests by a limited number of steps."""

    def __init__(self, reader: StepReader) -> None:
        self.step, self.mark, self.rows = reader.step, reader.mark, reader.rows
        self._reader = reader
        self._ready: deque[pa.Table] = deque()
        self._nbytes = 0  # of `_ready`
        self._failure: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="rayingest-partitions", daemon=True).start()

    def take(self, most: int) -> list[pa.Table]:
        """Wait for a step; return all steps that are ready, up to `most`. [] if it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._failure or self._closed)
            if self._closed:
                return []
            if not self._ready:
                assert self._failure is not None
                raise self._failure
            tables = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            self._nbytes -= sum(table.nbytes for table in tables)
            self.step, self.mark = self.step + len(tables), mark_after(tables[-1])
            self._changed.notify_all()
        return tables

    def close(self) -> None:
        """Let `take` return at once. The thread ends as soon as the user's code returns."""
        with self._changed:
            self._closed = self._reader.closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while self._wait_for_room():
                (table,) = self._reader.take()
                with self._changed:
                    self._ready.append(table)
                    self._nbytes += table.nbytes
                    self._changed.notify_all()
        except BaseException as error:  # the thread's boundary: the next `take` raises it
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._reader.close()

    def _wait_for_room(self) -> bool:
        """Wait until a further step may be read; return False if it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room())
            return not self._closed

    def _has_room(self) -> bool:
        return len(self._ready) < _AHEAD_STEPS and self._nbytes < _AHEAD_BYTES


class Unpickle:
    """A function for `Map`: returns a record's fields as its partition gave them."""

    def __init__(self, source: Source) -> None:
        self.source = f"{source.label} {code_mark(source.open_at)}"

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({self.source})"

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        # The bytes come from `pickle_sample`, in a process of this job.
        record: dict[str, Any] = pickle.loads(sample[SAMPLE])  # noqa: S301
        return record


def _table(samples: list[bytes], shards: list[str], offsets: list[Any], at: str) -> pa.Table:
    shown = [_show(offset) for offset in offsets]
    whole = all(offset is None or isinstance(offset, int) for offset in shown)
    columns = {
        SAMPLE: pa.array(samples, pa.binary()),
        FILE: pa.array(shards, pa.string()),
        OFFSET: pa.array(shown, pa.int64())
        if whole
        else pa.array(list(map(str, shown)), pa.string()),
    }
    return pa.table(columns).replace_schema_metadata({_MARK: at.encode()})


def _show(offset: Any) -> int | str | None:
    """Return an offset in the form that errors show: an int64, or text."""
    small = (
        isinstance(offset, int) and not isinstance(offset, bool) and -(1 << 63) <= offset < 1 << 63
    )
    return offset if offset is None or small else repr(offset)


def _is_json(offset: Any) -> bool:
    try:
        encode_mark(0, [offset])
    except (TypeError, ValueError):
        return False
    return True
