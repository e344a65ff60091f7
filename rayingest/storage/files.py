"""Bytes of files anywhere: bounded retries, a deadline for each read, and errors that name the file.

Owns how a byte range is fetched and what a failure of storage means. It knows nothing of formats, and never writes
into a user's bucket. Local files are read directly; everything else goes through fsspec.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, BinaryIO, TypeVar

import tenacity

from rayingest.errors import ConfigError, DataError, IngestError
from rayingest.storage import local_files
from rayingest.storage.deadline import run_within
from rayingest.storage.disk_cache import DiskCache
from rayingest.storage.failures import (
    PERMANENT,
    REFUSALS,
    NotAFileError,
    is_transient,
    raise_real_error,
    status_of,
    storage_errors,
)
from rayingest.storage.filesystems import filesystem_of, fresh_info, protocols, read_whole_if_exists
from rayingest.storage.listing import mark_of
from rayingest.storage.local_files import FirstTimes, local_path
from rayingest.storage.ranges import RangeFile, coalesce, slice_spans
from rayingest.storage.redact import redact, redact_text

T = TypeVar("T")

LOCAL_BUFFER = 64 << 10
REMOTE_BUFFER = 4 << 20
_TRUSTED_S = 30.0
_RANGES_AT_ONCE = 8

_counting = threading.Lock()


class Storage:
    """Reads files by URL. Picklable; credentials in `storage_options` (as fsspec takes them) are never shown.

    Transient failures are tried again up to `attempts` times with exponential backoff and jitter, starting at
    `first_wait` seconds, and no read takes longer than `deadline` seconds, tries together. Then, or at once where
    trying again is no use: DataError, or ConfigError where access is refused. `allow_pipe`: whether `pipe:COMMAND` may
    be run (by `pipes`). `cache` keeps ranges of remote files that are known by a mark. `counters`
    counts in this process.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        attempts: int = 5,
        deadline: float = 120.0,
        first_wait: float = 0.2,
        allow_pipe: bool = False,
        cache: DiskCache | None = None,
    ) -> None:
        self.storage_options = dict(storage_options or {})
        self.attempts, self.deadline, self.first_wait = attempts, deadline, first_wait
        self.allow_pipe, self.cache = allow_pipe, cache
        self.counters = Counters()
        self._known: dict[str, tuple[float, int, str]] = {}
        self._first_times = FirstTimes()

    def __repr__(self) -> str:
        return f"Storage(storage_options={sorted(self.storage_options)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "_first_times": FirstTimes(), "counters": Counters()}

    def open(self, url: str, *, buffer: int | None = None, mark: str = "") -> BinaryIO:
        """The file for reading, seekable, positioned at 0. `buffer`: bytes fetched at once, 0: exactly what is asked.

        Remote reads inside it have the same retries and deadline as any other. `mark`: that of the file as it is now,
        where it is known; without one nothing of it is cached.
        """
        path = local_path(url)
        if path is not None:
            size = LOCAL_BUFFER if buffer is None else buffer
            return self._in_time(url, lambda: local_files.open_file(path, size), "open")
        whole = self.size(url)
        raw = RangeFile(
            lambda begin, end: self.read_unchecked(url, [(begin, end)], whole, mark)[0], whole
        )
        size = REMOTE_BUFFER if buffer is None else buffer
        return io.BufferedReader(raw, size) if size else raw  # type: ignore[return-value]

    def read_range(self, url: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of the file. DataError when the file gives any other number of bytes."""
        return self.read_ranges(url, [(begin, end)])[0]

    def read_ranges(
        self, url: str, ranges: Sequence[tuple[int, int]], size: int | None = None, mark: str = ""
    ) -> list[bytes]:
        """Several ranges of one file; with `size`, DataError when the file is not what it was, as by `check_size`."""
        path = local_path(url)
        if path is not None:
            found, pieces = self._in_time(url, lambda: local_files.read_ranges(path, ranges))
            if size is not None:
                self._check_local(url, size, mark, found)
        else:
            if size is not None:
                self.check_size(url, size, mark)
            return self.read_unchecked(url, ranges, size, mark)
        self._check_lengths(url, ranges, pieces)
        return pieces

    def read_unchecked(
        self, url: str, ranges: Sequence[tuple[int, int]], size: int | None, mark: str
    ) -> list[bytes]:
        """Ranges of a remote file that is known to be of this size and mark: kept ones, where there is a cache."""

        def fetch(spans: Sequence[tuple[int, int]]) -> list[bytes]:
            pieces = self._read_remote(url, spans)
            self._check_lengths(url, spans, pieces)
            return pieces

        if self.cache is None or not mark:
            return fetch(ranges)
        missed: list[tuple[int, int]] = []

        def fetch_missed(spans: list[tuple[int, int]]) -> list[bytes]:
            missed.extend(spans)
            return fetch(spans)

        pieces = self.cache.read_through(f"{redact(url)} {size} {mark}", ranges, fetch_missed)
        self._count(Counters(cache_hits=len(ranges) - len(missed), cache_misses=len(missed)))
        return pieces

    def _check_lengths(
        self, url: str, ranges: Sequence[tuple[int, int]], pieces: Sequence[bytes]
    ) -> None:
        for (begin, end), piece in zip(ranges, pieces, strict=True):
            if len(piece) != end - begin:
                raise DataError(
                    f"{len(piece)} bytes came back for the {end - begin} asked for: the file has "
                    "changed or is cut "
                    "off, or its server ignores byte ranges",
                    shard=redact(url),
                    offset=begin,
                )

    def read_all(self, url: str) -> bytes:
        """The whole file."""
        path = local_path(url)
        if path is not None:
            return self._in_time(url, lambda: local_files.read_whole(path))
        return self.on_filesystem(url, lambda fs, name: bytes(fs.cat_file(name)))

    def read_if_exists(self, url: str) -> bytes | None:
        """The whole file, None where there is none."""
        path = local_path(url)
        if path is not None:
            return self.read_all(url) if os.path.exists(path) else None  # noqa: PTH110
        return self.on_filesystem(url, read_whole_if_exists)

    def size(self, url: str) -> int:
        """Bytes of the file as it is now."""
        path = local_path(url)
        if path is not None:
            return self._in_time(url, lambda: os.stat(path).st_size, "stat")  # noqa: PTH116
        return self._now(url)[0]

    def check_size(self, url: str, size: int, mark: str = "") -> None:
        """DataError when the file's size differs, or its `mark`, where there is one.

        A remote file's mark is what `listing.mark_of` tells; an answer is trusted for half a minute. A local file's
        time may be another on each node that has a copy: it must stay what it was at the first look from here.
        """
        path = local_path(url)
        if path is not None:
            self._check_local(url, size, mark, self._in_time(url, lambda: os.stat(path), "stat"))  # noqa: PTH116
            return
        now = time.monotonic()
        asked, found, marked = self._known.get(url, (-_TRUSTED_S, -1, ""))
        if url.startswith("memory://") or found != size or now - asked >= _TRUSTED_S:
            found, marked = self._now(url)
            if len(self._known) > 4096:  # a bound on memory, not a policy
                self._known = {}
            self._known[url] = now, found, marked
        self._compare(url, size, found)
        if mark and marked and mark != marked:
            raise DataError(
                "the shard changed since it was indexed: it is of the same size, but was written "
                "again, as its etag or "
                f"time tells ({mark} then, {marked} now)",
                shard=redact(url),
                offset=0,
            )

    def _now(self, url: str) -> tuple[int, str]:
        """A remote file's size and mark."""
        info = self.on_filesystem(url, fresh_info, "stat")
        if info.get("size") is None:
            raise ConfigError(
                f"{redact(url)}: the server does not tell the file's size, which reading by "
                "ranges needs"
            )
        return int(info["size"]), mark_of(info)

    def on_filesystem(self, url: str, operation: Callable[[Any, str], T], doing: str = "read") -> T:
        """`operation(filesystem, path in it)` of fsspec with retries and the deadline, each try in its own thread."""
        fs, name = self.filesystem(url)

        def ask() -> T:
            try:
                return raise_real_error(lambda: operation(fs, name))
            except IngestError:
                raise
            except REFUSALS as error:
                raise ConfigError(
                    f"cannot {doing} {redact(url)}: {self._shown(url, error)}"
                ) from None

        if "memory" in protocols(fs):
            return self.call(url, ask, doing)
        return self._in_time(url, ask, doing)

    def filesystem(self, url: str) -> tuple[Any, str]:
        """The fsspec filesystem of a URL and the path in it; ConfigError for a protocol that is not to be had."""
        try:
            return filesystem_of(url, self.storage_options)
        except (ValueError, ImportError, TypeError) as error:
            raise ConfigError(f"cannot reach {redact(url)}: {self._shown(url, error)}") from None
        except storage_errors() as error:  # some connect at once
            raise DataError(
                f"cannot be reached: {self._shown(url, error)}", shard=redact(url), transient=True
            ) from None

    def _in_time(self, url: str, operation: Callable[[], T], doing: str = "read") -> T:
        """As by `call`; each try is in another thread, and may not take all of the time there is if it hangs."""
        return self.call(url, lambda: run_within(self.deadline / 2, operation), doing)

    def call(self, url: str, operation: Callable[[], T], doing: str = "read") -> T:
        """`operation()` with retries; storage's own errors become ConfigError or DataError that name the file."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_transient),
            stop=tenacity.stop_after_attempt(self.attempts)
            | tenacity.stop_after_delay(self.deadline),
            wait=tenacity.wait_exponential(self.first_wait, max=10.0)
            + tenacity.wait_random(0, self.first_wait),
            before_sleep=self._count_retry,
            reraise=True,
        )
        with self.translate_errors(url, doing):
            return retrying(operation)

    def _count_retry(self, state: tenacity.RetryCallState) -> None:
        self._count(Counters(retries=1))

    def _count(self, more: Counters) -> None:
        with _counting:
            self.counters += more

    @contextmanager
    def translate_errors(self, url: str, doing: str = "read") -> Iterator[None]:
        """Inside, storage's own errors become ours. Their causes are cut off: they may show credentials."""
        try:
            yield
        except storage_errors() as error:
            raise self._translated(url, doing, error) from None

    def _read_remote(self, url: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        def one(span: tuple[int, int]) -> bytes:
            begin, end = span
            if begin == end:
                return b""
            return self.on_filesystem(
                url, lambda fs, name: bytes(fs.cat_file(name, start=begin, end=end))
            )

        spans = coalesce(ranges)
        if len(spans) < 2:
            pieces = [one(span) for span in spans]
        else:
            with ThreadPoolExecutor(min(len(spans), _RANGES_AT_ONCE), "rayingest-read") as pool:
                pieces = list(pool.map(one, spans))
        return slice_spans(ranges, spans, pieces)

    def _check_local(self, url: str, size: int, mark: str, found: os.stat_result) -> None:
        self._compare(url, size, found.st_size)
        if mark and self._first_times.differs((url, mark), found):
            raise DataError(
                "the shard changed while it was being read: it is of the same size, but was "
                "written again, as its time "
                "tells",
                shard=redact(url),
                offset=0,
            )

    def _compare(self, url: str, expected: int, found: int) -> None:
        if found != expected:
            raise DataError(
                f"the shard changed since it was indexed: {expected} bytes then, {found} now",
                shard=redact(url),
                offset=min(expected, found),
            )

    def _shown(self, url: str, error: BaseException) -> str:
        return redact_text(f"{type(error).__name__}: {error}", self.storage_options, url)

    def _translated(self, url: str, doing: str, error: BaseException) -> ConfigError | DataError:
        if isinstance(error, FileNotFoundError):
            return DataError(f"cannot {doing} the file: it does not exist", shard=redact(url))
        if isinstance(error, (IsADirectoryError, NotADirectoryError)):
            other = (
                "a folder is in the file's place"
                if isinstance(error, IsADirectoryError)
                else "its folder is none"
            )
            return DataError(f"cannot {doing} the file: {other}", shard=redact(url))
        if isinstance(error, NotAFileError):
            return DataError(f"cannot {doing} the file: {error}", shard=redact(url))
        if isinstance(error, PERMANENT) or status_of(error) in {401, 403}:
            return ConfigError(f"cannot {doing} {redact(url)}: {self._shown(url, error)}")
        passing = is_transient(error)
        tries = f" (tried {self.attempts} times or {self.deadline:g} s)" if passing else ""
        return DataError(
            f"cannot {doing} the file{tries}: {self._shown(url, error)}",
            shard=redact(url),
            transient=passing,
        )


# What a process counts of its reads from storage.


@dataclass(frozen=True)
class Counters:
    """What was counted: tries after a failure, and ranges found, or not, in the cache on disk."""

    retries: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            *(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True))
        )

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            *(mine - its for mine, its in zip(astuple(self), astuple(other), strict=True))
        )
