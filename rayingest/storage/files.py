"""Read bytes of files anywhere: with bounded retries, deadlines, and errors that name the file.

Owns how a byte range is fetched, and what a failure of storage means. Knows nothing of formats, and
never writes into a user's bucket. Local files are read directly; everything else goes through
fsspec.
"""

from __future__ import annotations

import io
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, TypeVar

import tenacity

from rayingest.errors import ConfigError, DataError, IngestError
from rayingest.storage.disk_cache import DiskCache
from rayingest.storage.failures import (
    PERMANENT,
    REFUSALS,
    NotAFileError,
    is_transient,
    lacks_credentials,
    raise_real_error,
    status_of,
    storage_errors,
)
from rayingest.storage.file_info import local_path
from rayingest.storage.filesystems import (
    filesystem_of,
    fresh_info,
    install_advice,
    mark_of,
    protocols,
    read_whole_if_exists,
)
from rayingest.storage.ranges import RangeFile, coalesce, slice_spans
from rayingest.storage.redact import redact, redact_text

T = TypeVar("T")

LOCAL_BUFFER = 64 << 10
REMOTE_BUFFER = 4 << 20
_TRUSTED_S = 30.0
_RANGES_AT_ONCE = 8
_IDLE_S = 2.0
_REMEMBERED = 1 << 16

_counting = threading.Lock()


class Storage:
    """Read files by URL. Picklable; the credentials in `storage_options` are never shown.

    `storage_options`: those of fsspec. Transient failures are retried up to `attempts` times, with
    exponential backoff from `first_wait` seconds and jitter; no read takes longer than `deadline`
    seconds, retries included. Then, or at once if no retry can help: DataError, or ConfigError if
    access is refused. `allow_pipe`: whether `pipes` may run `pipe:COMMAND`. `cache`: for ranges of
    remote files whose mark is known. `counters`: of this process.
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
        self._info: dict[str, tuple[float, int, str]] = {}
        self._first_times = _FirstTimes()

    def __repr__(self) -> str:
        return f"Storage(storage_options={sorted(self.storage_options)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_info": {}, "_first_times": _FirstTimes(), "counters": Counters()}

    def open(self, url: str, *, buffer: int | None = None, mark: str = "") -> BinaryIO:
        """Open the file for reading, seekable, at 0.

        `buffer`: bytes per fetch; 0 fetches exactly what is asked for. Remote reads inside it have
        the same retries and deadline. `mark`: the file's current mark; without it, nothing of the
        file is cached.
        """
        path = local_path(url)
        if path is not None:
            size = LOCAL_BUFFER if buffer is None else buffer
            return self._with_deadline(url, lambda: _open_local(path, size), "open")
        whole = self.size(url)
        raw = RangeFile(
            lambda begin, end: self.read_unchecked(url, [(begin, end)], whole, mark)[0], whole
        )
        size = REMOTE_BUFFER if buffer is None else buffer
        return io.BufferedReader(raw, size) if size else raw  # type: ignore[return-value]

    def read_range(self, url: str, begin: int, end: int) -> bytes:
        """Return bytes [begin, end). DataError if the file gives another number of bytes."""
        return self.read_ranges(url, [(begin, end)])[0]

    def read_ranges(
        self, url: str, ranges: Sequence[tuple[int, int]], size: int | None = None, mark: str = ""
    ) -> list[bytes]:
        """Return several ranges of one file; with `size`, first check it as `check_size` does."""
        path = local_path(url)
        if path is not None:
            found, pieces = self._with_deadline(url, lambda: _read_local_ranges(path, ranges))
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
        """Return ranges of a remote file whose size and mark are known.

        Cached ranges come from the cache, if there is one.
        """

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
                    f"{len(piece)} bytes were returned, {end - begin} were requested: the "
                    "file has changed or is cut off, or its server ignores byte ranges",
                    shard=redact(url),
                    offset=begin,
                )

    def read_all(self, url: str) -> bytes:
        """Return the whole file."""
        path = local_path(url)
        if path is not None:
            return self._with_deadline(url, lambda: _read_local(path))
        return self.on_filesystem(url, lambda fs, name: bytes(fs.cat_file(name)))

    def read_if_exists(self, url: str) -> bytes | None:
        """Return the whole file, or None if it does not exist."""
        path = local_path(url)
        if path is not None:
            return self.read_all(url) if os.path.exists(path) else None  # noqa: PTH110
        return self.on_filesystem(url, read_whole_if_exists)

    def size(self, url: str) -> int:
        """Return the file's current size in bytes."""
        path = local_path(url)
        if path is not None:
            return self._with_deadline(url, lambda: os.stat(path).st_size, "stat")  # noqa: PTH116
        return self._current_info(url)[0]

    def check_size(self, url: str, size: int, mark: str = "") -> None:
        """Raise DataError if the file's size differs, or its `mark`, if there is one.

        The mark of a remote file is `listing.mark_of`; an answer is trusted for 30 s. The time of a
        local file may differ on each node that has a copy, so it must only stay what it was when
        this process first looked.
        """
        path = local_path(url)
        if path is not None:
            found_now = self._with_deadline(url, lambda: os.stat(path), "stat")  # noqa: PTH116
            self._check_local(url, size, mark, found_now)
            return
        now = time.monotonic()
        asked, found, mark_now = self._info.get(url, (-_TRUSTED_S, -1, ""))
        if url.startswith("memory://") or found != size or now - asked >= _TRUSTED_S:
            found, mark_now = self._current_info(url)
            if len(self._info) > 4096:  # bounds memory, and has no other purpose
                self._info = {}
            self._info[url] = now, found, mark_now
        self._compare(url, size, found)
        if mark and mark_now and mark != mark_now:
            raise DataError(
                "the shard changed since it was indexed: its size is the same, but it was "
                f"written again: its etag or time was {mark} and is {mark_now}",
                shard=redact(url),
                offset=0,
            )

    def _current_info(self, url: str) -> tuple[int, str]:
        """Return a remote file's current size and mark."""
        info = self.on_filesystem(url, fresh_info, "stat")
        if info.get("size") is None:
            raise ConfigError(
                f"the server of {redact(url)} does not report the file's size, which reading by "
                "ranges needs: copy the file to other storage"
            )
        return int(info["size"]), mark_of(info)

    def on_filesystem(self, url: str, operation: Callable[[Any, str], T], doing: str = "read") -> T:
        """Return `operation(filesystem, path)` on fsspec, with retries and the deadline.

        Each try runs in its own thread. `doing`: the verb for messages.
        """
        fs, name = self.filesystem(url)

        def ask() -> T:
            try:
                return raise_real_error(lambda: operation(fs, name))
            except IngestError:
                raise
            except REFUSALS as error:
                raise ConfigError(
                    f"cannot {doing} {redact(url)}: {self._describe(url, error)}"
                ) from None

        if "memory" in protocols(fs):
            return self.call(url, ask, doing)
        return self._with_deadline(url, ask, doing)

    def filesystem(self, url: str) -> tuple[Any, str]:
        """Return the fsspec filesystem of a URL, and the path in it.

        ConfigError if the protocol is not available, DataError if the server cannot be reached.
        """
        try:
            return filesystem_of(url, self.storage_options)
        except ImportError as error:
            raise ConfigError(
                f"{redact(url)} needs a library that is not installed: {install_advice(url)} "
                f"({self._describe(url, error)})"
            ) from None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"cannot reach {redact(url)}: {self._describe(url, error)}") from None
        except storage_errors() as error:  # some filesystems connect here
            raise DataError(
                f"cannot be reached: {self._describe(url, error)}",
                shard=redact(url),
                transient=True,
            ) from None

    def _with_deadline(self, url: str, operation: Callable[[], T], doing: str = "read") -> T:
        """Run as `call` does; each try has half of the deadline, in another thread."""
        return self.call(url, lambda: _run_within(self.deadline / 2, operation), doing)

    def call(self, url: str, operation: Callable[[], T], doing: str = "read") -> T:
        """Return `operation()`, with retries.

        Errors of storage become ConfigError or DataError, which name the file.
        """
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
        """Raise DataError or ConfigError for storage errors inside.

        Their causes are cut off: they may show credentials.
        """
        try:
            yield
        except storage_errors() as error:
            raise self._translate(url, doing, error) from None

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
                "the shard changed while it was being read: its size is the same, but its time "
                "shows that it was written again",
                shard=redact(url),
                offset=0,
            )

    def _compare(self, url: str, expected: int, found: int) -> None:
        if found != expected:
            raise DataError(
                f"the shard changed since it was indexed: it had {expected} bytes then, {found} "
                "now",
                shard=redact(url),
                offset=min(expected, found),
            )

    def _describe(self, url: str, error: BaseException) -> str:
        return redact_text(f"{type(error).__name__}: {error}", self.storage_options, url)

    def _translate(self, url: str, doing: str, error: BaseException) -> ConfigError | DataError:
        if isinstance(error, FileNotFoundError):
            return DataError(f"cannot {doing} the file: it does not exist", shard=redact(url))
        if isinstance(error, (IsADirectoryError, NotADirectoryError)):
            other = (
                "it is a folder"
                if isinstance(error, IsADirectoryError)
                else "its parent is not a folder"
            )
            return DataError(f"cannot {doing} the file: {other}", shard=redact(url))
        if isinstance(error, NotAFileError):
            return DataError(f"cannot {doing} the file: {error}", shard=redact(url))
        if lacks_credentials(error):
            return ConfigError(
                f"there are no credentials to {doing} {redact(url)}: set those of the storage in "
                "the environment or in its configuration file, give storage_options=..., or, for "
                f"public data, storage_options={{'anon': True}} ({self._describe(url, error)})"
            )
        if isinstance(error, PERMANENT) or status_of(error) in {401, 403}:
            return ConfigError(f"cannot {doing} {redact(url)}: {self._describe(url, error)}")
        transient = is_transient(error)
        tries = f" after {self.attempts} attempts or {self.deadline:g} s" if transient else ""
        return DataError(
            f"cannot {doing} the file{tries}: {self._describe(url, error)}",
            shard=redact(url),
            transient=transient,
        )


@dataclass(frozen=True)
class Counters:
    """Counts of this process: retries, and ranges found or not found in the disk cache."""

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


class _Helper:
    """A thread that runs one operation after the other, until it is `abandoned`.

    A thread that is done serves the next operation, since a thread per read costs more than a small
    read. It ends after some idle time.
    """

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.abandoned = False
        threading.Thread(target=self._run, name="rayingest-storage", daemon=True).start()

    def _run(self) -> None:
        while not self.abandoned:
            try:
                task = self.tasks.get(timeout=_IDLE_S)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # taken just now, or abandoned
                    continue
                return
            try:
                self.answers.put((task(), None))
            except BaseException as error:  # the caller raises it, whatever it is
                self.answers.put((None, error))
            del task


_idle: list[_Helper] = []
os.register_at_fork(after_in_child=_idle.clear)  # a child has none of their threads


def _run_within(seconds: float, operation: Callable[[], T]) -> T:
    """Return `operation()`, run in another thread.

    TimeoutError after `seconds`; the thread is then abandoned, and ends by itself.
    """
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.tasks.put(operation)
    try:
        result, error = helper.answers.get(timeout=seconds)
    except BaseException as interruption:
        helper.abandoned = True
        if isinstance(interruption, Empty):
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise
    _idle.append(helper)
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


class _FirstTimes:
    """Remember when each file was last written, at the first look of this process.

    Keys are its URL and its mark in the index: a new index begins anew. Holds at most 65,536 files,
    which bounds memory. Times only: some filesystems give a file another inode at each request.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], int] = {}

    def differs(self, key: tuple[str, str], found: os.stat_result) -> bool:
        """Return whether the file has been written since the first look."""
        first = self._times.get(key)
        if first is None and len(self._times) < _REMEMBERED:
            self._times[key] = found.st_mtime_ns
        return first not in {None, found.st_mtime_ns}


def _open_local(path: str, buffering: int = -1) -> BinaryIO:
    """Open the file. NotAFileError for a device, or a FIFO, whose writer is not waited for."""
    file = open(path, "rb", buffering, opener=_without_waiting)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotAFileError("it is a pipe, a socket or a device")
    return file  # type: ignore[return-value]


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _read_local_ranges(
    path: str, ranges: Sequence[tuple[int, int]]
) -> tuple[os.stat_result, list[bytes]]:
    """Return the file's stat result and its ranges, from one open file, so that they agree."""
    with _open_local(path, buffering=0) as file:
        found = os.fstat(file.fileno())
        pieces = []
        for begin, end in ranges:
            file.seek(begin)
            pieces.append(_read_fully(file, end - begin))  # type: ignore[arg-type]
        return found, pieces


def _read_fully(file: io.FileIO, count: int) -> bytes:
    """Return `count` bytes, fewer only at the end: one system call reads at most 2 GiB."""
    piece = file.read(count) or b""
    if len(piece) in {0, count}:
        return piece
    parts = [piece]
    missing = count - len(piece)
    while missing and (piece := file.read(missing) or b""):
        parts.append(piece)
        missing -= len(piece)
    return b"".join(parts)


def _read_local(path: str) -> bytes:
    """Return the whole file."""
    with _open_local(path) as file:
        return file.read()
