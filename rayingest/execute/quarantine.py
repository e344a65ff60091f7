"""Record every skipped sample in a file, count them, and limit their number.

A loader has one quarantine. It records what reaches the training loop, not what is found ahead of
it, so the file and the counts depend on the stream alone. It decides neither which samples are bad
nor which ones replace them.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from rayingest.errors import ConfigError, DataError
from rayingest.storage.redact import redact_text

DEFAULT_MAX_ERRORS = 0.05
_LEAST_ROWS = 1000
"""A fraction applies to at least this many rows, so that the first few bad samples end no run."""

NOTHING_SKIPPED = {"samples_bad": 0, "replacements": 0}

_log = logging.getLogger("rayingest")


class Quarantine:
    """The bad samples of one rank's loader.

    Args:
        folder: the folder of the file; None: a folder in the user's cache.
        name: the file's name without its suffix. Lines are appended to a file that exists.
        max_errors: an int limits the number of different bad samples; a float (0 to 1) limits the
            share of replacements in the rows so far, counted as 1,000 at least. None: 0.05.
        options: storage options, whose values must not be shown.

    Raises:
        ConfigError: the folder cannot be created or written to.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        name: str,
        max_errors: float | None,
        options: Mapping[str, Any],
    ) -> None:
        self.max_errors = DEFAULT_MAX_ERRORS if max_errors is None else max_errors
        self._options = options
        self.path = _create(folder) / f"{name}.jsonl"
        self.counts = dict(NOTHING_SKIPPED)
        self._rows = 0
        self._recorded: set[tuple[str | None, int | None]] = set()  # shard and sample
        self._over: DataError | None = None  # once the limit is exceeded

    def admit(self, rows: int, bad: Sequence[DataError]) -> None:
        """Admit a batch of `rows` rows to the loop; replacements stand in it for the `bad` samples.

        Raises:
            DataError: the limit is exceeded; raised for every later batch, too.
            ConfigError: the samples cannot be written to the file. The batch is then not counted.
        """
        found = {(error.shard, error.sample): error for error in bad}
        new = [error for sample, error in found.items() if sample not in self._recorded]
        if new:
            self._record(new)
        self._rows += rows
        self._recorded.update(found)
        self.counts["samples_bad"] = len(self._recorded)
        self.counts["replacements"] += len(bad)
        if bad and self._over is None and self._too_many():
            self._over = self._overflow(bad[-1])
        if self._over is not None:
            raise self._over

    def _too_many(self) -> bool:
        if isinstance(self.max_errors, int):
            return len(self._recorded) > self.max_errors
        return self.counts["replacements"] > self.max_errors * max(self._rows, _LEAST_ROWS)

    def _overflow(self, last: DataError) -> DataError:
        return DataError(
            f"{len(self._recorded)} bad samples, replaced in {self.counts['replacements']} of "
            f"{self._rows} rows, exceed max_errors={self.max_errors}; all are listed in "
            f"{self.path}; the last one: {last.reason}",
            shard=last.shard,
            offset=last.offset,
            sample=last.sample,
            key=last.key,
        )

    def _record(self, new: Sequence[DataError]) -> None:
        lines = "".join(json.dumps(self._line(error)) + "\n" for error in new)
        try:
            _append(self.path, lines.encode())
        except OSError as error:
            raise ConfigError(
                f"bad samples cannot be listed in {self.path}: {error.strerror or error}; make the "
                "file writable, or give another folder as quarantine=, and resume from a state"
            ) from error
        if not self._recorded:
            _log.warning(
                "bad samples are skipped and listed in %s; the first one: %s",
                self.path,
                self._redact(str(new[0])),
            )

    def _line(self, error: DataError) -> dict[str, Any]:
        return {
            "shard": self._redact(error.shard or ""),
            "offset": error.offset,
            "key": error.key,
            "sample": error.sample,
            "error": self._redact(error.reason),
        }

    def _redact(self, text: str) -> str:
        return redact_text(text, self._options)


def _append(path: Path, lines: bytes) -> None:
    """Append all of these lines, or none; remove a part of a line that an earlier process left.

    A process can end, or a disk be full, in the middle of a line.
    """
    with path.open("a+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
            end = path.read_bytes().rfind(b"\n") + 1
            file.truncate(end)
        try:
            while lines:
                lines = lines[file.write(lines) :]
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise


def _create(folder: str | os.PathLike[str] | None) -> Path:
    if folder is None:
        path = Path(platformdirs.user_cache_dir("rayingest")) / "quarantine"
    else:
        path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"quarantine={str(path)!r}: the folder cannot be created: {error}"
        ) from error
    if not os.access(path, os.W_OK):
        raise ConfigError(f"quarantine={str(path)!r}: the folder cannot be written to")
    return path
