"""Define the errors of rayingest. Each names the culprit and what would work.

All of them survive pickling between processes.
"""

from __future__ import annotations

from typing import Any


class IngestError(Exception):
    """Base of every error that rayingest raises on purpose."""


class ConfigError(IngestError, ValueError):
    """A request that cannot work, such as a wrong option or a URL that matches no file."""


class DataError(IngestError):
    """Data that cannot be read or decoded.

    Attributes are None where they are not known. If only the sample's block is known, `offset` is
    the block's, and the reason says so.

    Attributes:
        reason: the message without the place.
        shard: the URL, without credentials.
        offset: the place in the shard in the format's own units: bytes of a tar, row of a Parquet
            file, byte of a line in a JSON Lines file, or an offset of the user's stream.
        sample: the ordinal of the sample in the manifest.
        key: the sample's own name.
        transient: True if the data need not be at fault: storage failed or did not answer, a time
            limit passed, memory was short. A sample is never skipped for it.
    """

    def __init__(
        self,
        reason: str,
        *,
        shard: str | None = None,
        offset: int | str | None = None,
        sample: int | None = None,
        key: str | None = None,
        transient: bool = False,
    ) -> None:
        self.reason, self.transient = reason, transient
        self.shard, self.offset, self.sample, self.key = shard, offset, sample, key
        named = {"shard": shard, "offset": offset, "sample": sample, "key": key}
        where = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
        super().__init__(f"{reason} [{where}]" if where else reason)

    def with_reason(self, reason: str) -> DataError:
        """Return the same error with another reason."""
        return _rebuild_data_error(type(self), reason, self.__reduce__()[1][2])

    def __reduce__(self) -> tuple[Any, ...]:
        place = {"shard": self.shard, "offset": self.offset, "sample": self.sample, "key": self.key}
        return _rebuild_data_error, (
            type(self),
            self.reason,
            {**place, "transient": self.transient},
        )


def _rebuild_data_error(kind: type[DataError], reason: str, rest: dict[str, Any]) -> DataError:
    return kind(reason, **rest)


class DeadlySampleError(DataError):
    """A sample whose decoding ended its worker every time."""


class EndOfStreamError(IngestError):
    """A stream has no more records for now. Loaders end their pass with it; users do not see it."""


class StateError(IngestError):
    """A saved state of other data, another order or batch; the message lists differences."""


class WorkerError(IngestError):
    """Workers did not start, or died again and again; the message says what they were running."""
