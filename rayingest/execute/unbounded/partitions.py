"""Partitions of an unbounded source where they are read: the iterators that a process has open, and how it goes on.

Owns those alone; in which order records come is the business of `merging`.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from rayingest.errors import DataError, IngestError
from rayingest.execute.unbounded.merging import SAMPLE, Ahead, Merged, Source
from rayingest.execute.work import Spans
from rayingest.transforms.code_mark import code_mark


class Partitions:
    """A source's steps, from any bookmark on.

    One run goes on in a process, `ahead` of who asks where that is told; whoever asks for another place begins
    another one there.
    """

    def __init__(self, source: Source, ahead: bool = False) -> None:
        self.source, self.ahead = source, ahead
        self.__setstate__(self.__dict__)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("source", "ahead")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._run: Merged | Ahead | None = None

    def read(self, spans: Spans) -> list[pa.Table]:
        """One table for each step, or for the first of them where there are no more yet.

        A span has the step for size, the bookmark before it for mark, and for blocks (first, end, count): rows of this
        step and of those behind it.
        Raises what is wrong with the first that cannot be had, or EndOfStreamError.
        """
        tables: list[pa.Table] = []
        for _, step, at, rows, _ in spans:
            if not at:
                raise DataError(
                    "what comes before could not be read", shard=self.source.what, transient=True
                )
            run = self._run_at(step, at, rows[0][:2])
            try:
                found = run.take(len(rows))
            except BaseException as error:
                self._drop(run)
                if tables and isinstance(error, IngestError):
                    return tables
                raise
            tables += found
            if len(found) < len(rows):
                break
        return tables

    def close(self) -> None:
        """Close what is open."""
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.close()

    def _run_at(self, step: int, at: str, rows: tuple[int, int]) -> Merged | Ahead:
        with self._lock:
            old = self._run
            if old is not None and (old.step, old.mark, old.rows) == (step, at, rows):
                return old
            run = Merged(self.source, step, at, rows)
            self._run = made = Ahead(run) if self.ahead else run
        if old is not None:
            old.close()
        return made

    def _drop(self, run: Merged | Ahead) -> None:
        with self._lock:
            self._run = None if self._run is run else self._run
        run.close()


class Unpickle:
    """For `Map`: a record's fields, as its partition gave them."""

    def __init__(self, source: Source) -> None:
        self.source = f"{source.what} {code_mark(source.open_at)}"

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({self.source})"

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        record: dict[str, Any] = pickle.loads(sample[SAMPLE])  # noqa: S301 - by `pickled`, in this job
        return record
