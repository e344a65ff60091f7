"""Partitions merged: read record by record, one of each in turn, from a bookmark on, and cut into steps.

Owns the order of records, which is a function of what the partitions hold alone; whoever has ended is left out from
then on. Every step's table has the bookmark behind it. Knows nothing of who asks for which steps.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rayingest.errors import ConfigError, DataError, EndOfStreamError, IngestError
from rayingest.plan.order.offsets import bookmark
from rayingest.transforms.functions import name_of, user_line
from rayingest.transforms.raw_block import FILE, OFFSET
from rayingest.transforms.torch.iterables import pickled

SAMPLE = "sample"
"""The column of samples."""
_BEHIND = b"behind"
"""In a table's metadata."""
_AHEAD_STEPS, _AHEAD_BYTES = 16, 8 << 20
_END = object()
_PAIRS = "(sample, offset): a dict of fields, and where to go on behind it"


@dataclass(frozen=True)
class Source:
    """What `open_at(name, offset)` gives of each name, in steps of `batch` records, all ranks together."""

    open_at: Callable[[Any, Any], Any]
    names: tuple[int | str, ...]
    batch: int = 1

    @property
    def what(self) -> str:
        """What to call it in messages."""
        return name_of(self.open_at)


def behind(table: pa.Table) -> str:
    """The bookmark behind a step's table."""
    return str(table.schema.metadata[_BEHIND].decode())


class Merged:
    """The records from a bookmark on. `rows` of each step are kept, the others only passed.

    What goes wrong leaves it somewhere inside a step: it is of no use any more.
    """

    def __init__(self, source: Source, step: int, at: str, rows: tuple[int, int]) -> None:
        self.step, self.mark, self.rows = step, at, rows
        self.closed = False
        self._source = source
        self._turn, self._offsets = json.loads(at)
        count = len(source.names)
        self._going_on = deque((self._turn + i) % count for i in range(count))
        self._iterators: dict[int, Iterator[Any]] = {}
        self._asked = self._turn

    def take(self, most: int = 1) -> list[pa.Table]:
        """The next step."""
        begin, end = self.rows
        samples, shards, offsets = [], [], []
        with self._named():
            for row in range(self._source.batch):
                sample, offset = self._next()
                number = self._asked
                if begin <= row < end:
                    samples.append(pickled(sample))
                    shards.append(self._shard(number))
                    offsets.append(self._offsets[number])
                self._offsets[number] = offset
                self._turn = (number + 1) % len(self._source.names)
                self._going_on.append(number)
        self.step, self.mark = self.step + 1, self._bookmark()
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
        """The next record, waited for, and where to go on behind it; `_asked` then is the partition that gave it."""
        while self._going_on:
            self._asked = self._going_on.popleft()
            if self._asked not in self._iterators:
                self._iterators[self._asked] = self._opened(self._asked)
            item = None
            while item is None:
                if self.closed:
                    raise EndOfStreamError(f"{self._source.what}: closed")
                item = next(self._iterators[self._asked], _END)
            if item is not _END:
                return self._checked(self._asked, item)
        raise EndOfStreamError(f"{self._source.what}: all partitions have ended")

    def _opened(self, number: int) -> Iterator[Any]:
        source, name, offset = self._source, self._source.names[number], self._offsets[number]
        made = source.open_at(name, offset)
        if not hasattr(made, "__iter__"):
            kind = type(made).__name__
            raise ConfigError(
                f"{source.what}({name!r}, {offset!r}) gave a {kind}: it must give an iterator of {_PAIRS}"
            )
        return iter(made)

    def _checked(self, number: int, item: Any) -> tuple[Mapping[str, Any], Any]:
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
            f"{self._source.what}: partition {self._source.names[number]!r} gave {shown}; its items must be pairs "
            f"{_PAIRS}"
        )

    def _bookmark(self) -> str:
        try:
            return bookmark(self._turn, self._offsets)
        except (TypeError, ValueError):
            number = next(
                number for number, offset in enumerate(self._offsets) if not _is_json(offset)
            )
            name, offset = self._source.names[number], self._offsets[number]
            raise ConfigError(
                f"{self._source.what}: partition {name!r} gave the offset {offset!r}, a {type(offset).__name__}, which "
                "JSON does not have: make it a number, text, or a list or dict of these"
            ) from None

    def _shard(self, number: int) -> str:
        return f"{self._source.what}/{self._source.names[number]}"

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Whatever the user's code raises inside becomes a DataError that names partition and offset."""
        try:
            yield
        except IngestError:
            raise
        except (Exception, SystemExit, GeneratorExit) as error:  # the latter would end a worker
            reason = f"{type(error).__name__}: {error}{user_line(error, self._source.open_at)}"
            shard, offset = self._shard(self._asked), _shown(self._offsets[self._asked])
            raise DataError(
                f"reading {self._source.what}: {reason}", shard=shard, offset=offset, transient=True
            ) from error


class Ahead:
    """A run that goes on in a thread of its own while what it gave is on its way, by so many steps and bytes."""

    def __init__(self, run: Merged) -> None:
        self.step, self.mark, self.rows = run.step, run.mark, run.rows
        self._run = run
        self._there: deque[pa.Table] = deque()
        self._nbytes = 0
        self._failure: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._go_on, name="rayingest-partitions", daemon=True).start()

    def take(self, most: int) -> list[pa.Table]:
        """The steps that are there, as soon as there is one; none where it is closed meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._there or self._failure or self._closed)
            if self._closed:
                return []
            if not self._there:
                assert self._failure is not None
                raise self._failure
            tables = [self._there.popleft() for _ in range(min(most, len(self._there)))]
            self._nbytes -= sum(table.nbytes for table in tables)
            self.step, self.mark = self.step + len(tables), behind(tables[-1])
            self._changed.notify_all()
        return tables

    def close(self) -> None:
        """Whoever waits is answered; the thread ends when the user's code comes back."""
        with self._changed:
            self._closed = self._run.closed = True
            self._changed.notify_all()

    def _go_on(self) -> None:
        try:
            while self._wait_for_room():
                (table,) = self._run.take()
                with self._changed:
                    self._there.append(table)
                    self._nbytes += table.nbytes
                    self._changed.notify_all()
        except BaseException as error:  # the thread's end: whoever asks next is told
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._run.close()

    def _wait_for_room(self) -> bool:
        """False where it is closed meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room())
            return not self._closed

    def _has_room(self) -> bool:
        return len(self._there) < _AHEAD_STEPS and self._nbytes < _AHEAD_BYTES


def _table(samples: list[bytes], shards: list[str], offsets: list[Any], at: str) -> pa.Table:
    shown = [_shown(offset) for offset in offsets]
    whole = all(offset is None or isinstance(offset, int) for offset in shown)
    columns = {
        SAMPLE: pa.array(samples, pa.binary()),
        FILE: pa.array(shards, pa.string()),
        OFFSET: pa.array(shown, pa.int64())
        if whole
        else pa.array(list(map(str, shown)), pa.string()),
    }
    return pa.table(columns).replace_schema_metadata({_BEHIND: at.encode()})


def _shown(offset: Any) -> int | str | None:
    """An offset as errors name it."""
    small = (
        isinstance(offset, int) and not isinstance(offset, bool) and -(1 << 63) <= offset < 1 << 63
    )
    return offset if offset is None or small else repr(offset)


def _is_json(offset: Any) -> bool:
    try:
        bookmark(0, [offset])
    except (TypeError, ValueError):
        return False
    return True
