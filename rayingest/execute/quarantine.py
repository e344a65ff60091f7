"""The quarantine: what is wrong with every sample that was skipped, in a file, counted, and how many may be.

One for each loader. Notes what reached the training loop, not what was found ahead of it, so that the file and the
counts depend on the stream alone. Decides nothing about which samples are bad or what takes their places.
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
"""A fraction is taken of at least so many rows, so that the first few bad samples do not end a run."""

NOTHING_SKIPPED = {"samples_bad": 0, "replacements": 0}

_log = logging.getLogger("rayingest")


class Quarantine:
    """The bad samples of one rank's loader.

    Args:
        folder: where the file is kept; None: the user's cache folder.
        name: of the file, without its suffix; what is there already is kept, and added to.
        max_errors: so many different samples may be bad (int), or such a part of the rows so far be stand-ins (float,
            0 to 1; of at least 1,000 rows); None: 0.05.
        options: whose values are not to be shown, as of `Storage`.

    Raises:
        ConfigError: a folder that cannot be.
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
        self.path = _made(folder) / f"{name}.jsonl"
        self.counts = dict(NOTHING_SKIPPED)
        self._rows = 0
        self._known: set[tuple[str | None, int | None]] = set()
        self._over: DataError | None = None

    def admit(self, rows: int, bad: Sequence[DataError]) -> None:
        """A batch of so many rows reaches the loop, in which stand-ins have the places of these samples.

        Raises DataError where there are too many of them, and for every batch after that; ConfigError where they cannot
        be listed, and then counts nothing of the batch.
        """
        found = {(error.shard, error.sample): error for error in bad}
        new = [error for place, error in found.items() if place not in self._known]
        if new:
            self._note(new)
        self._rows += rows
        self._known.update(found)
        self.counts["samples_bad"] = len(self._known)
        self.counts["replacements"] += len(bad)
        if bad and self._over is None and self._too_many():
            self._over = self._overflow(bad[-1])
        if self._over is not None:
            raise self._over

    def _too_many(self) -> bool:
        if isinstance(self.max_errors, int):
            return len(self._known) > self.max_errors
        return self.counts["replacements"] > self.max_errors * max(self._rows, _LEAST_ROWS)

    def _overflow(self, last: DataError) -> DataError:
        found = (
            f"{len(self._known)} bad samples, with stand-ins for "
            f"{self.counts['replacements']} of {self._rows} rows,"
        )
        return DataError(
            f"{found} are more than max_errors={self.max_errors} allows (all are listed in {self.path}); the last one: "
            f"{last.reason}",
            shard=last.shard,
            offset=last.offset,
            sample=last.sample,
            key=last.key,
        )

    def _note(self, new: Sequence[DataError]) -> None:
        try:
            _append(
                self.path, "".join(json.dumps(self._line(error)) + "\n" for error in new).encode()
            )
        except OSError as error:
            raise ConfigError(
                f"bad samples cannot be listed in {self.path}: {error.strerror or error}; mend that, or give another "
                "folder as quarantine=, and resume from a state"
            ) from error
        if not self._known:
            _log.warning(
                "bad samples are skipped and listed in %s; the first: %s",
                self.path,
                self._shown(str(new[0])),
            )

    def _line(self, error: DataError) -> dict[str, Any]:
        return {
            "shard": self._shown(error.shard or ""),
            "offset": error.offset,
            "key": error.key,
            "sample": error.sample,
            "error": self._shown(error.reason),
        }

    def _shown(self, text: str) -> str:
        return redact_text(text, self._options)


def _append(path: Path, lines: bytes) -> None:
    """All of these lines behind those that are whole, or none: a process may end, or a disk be full, amid one."""
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


def _made(folder: str | os.PathLike[str] | None) -> Path:
    if folder is None:
        path = Path(platformdirs.user_cache_dir("rayingest")) / "quarantine"
    else:
        path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"quarantine={str(path)!r}: the folder cannot be made: {error}"
        ) from error
    if not os.access(path, os.W_OK):
        raise ConfigError(f"quarantine={str(path)!r}: the folder cannot be written to")
    return path
