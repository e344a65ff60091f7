"""The errors a user can meet. Each names the culprit and what would work, and survives pickling between processes."""

from __future__ import annotations

from typing import Any


class IngestError(Exception):
    """Base of every error that rayingest raises on purpose."""


class ConfigError(IngestError, ValueError):
    """What was asked for cannot work: a wrong option, an empty match, a world size that does not divide the batch."""


class DataError(IngestError):
    """Data that cannot be read or decoded.

    `shard` is the URL without credentials, `offset` the place in it in the format's own units (bytes of a tar, row of a
    Parquet file, line byte of a JSON Lines file, or what a user's source calls one),
    `sample` the sample's ordinal in the manifest, `key` its own name.
    Where only the sample's block is known, the offset is the block's, and the reason says so. Any of them is None where
    it is not known. `transient`: the data need not be at fault (storage failed or did not answer, a time ran out,
    memory was short), so that no sample is ever skipped for it.
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
        self.reason, self.shard, self.offset, self.sample, self.key = (
            reason,
            shard,
            offset,
            sample,
            key,
        )
        self.transient = transient
        named = {"shard": shard, "offset": offset, "sample": sample, "key": key}
        where = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
        super().__init__(f"{reason} [{where}]" if where else reason)

    def saying(self, reason: str) -> DataError:
        """The same error with another reason."""
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
    """A sample that ended its worker whenever it was decoded."""


class EndOfStreamError(IngestError):
    """There is nothing more for now. Loaders end their pass with it; nobody else sees it."""


class StateError(IngestError):
    """A saved state that does not belong to this data, order or batch; the message lists what differs."""


class WorkerError(IngestError):
    """Workers could not be had, or kept dying; the message says what was running."""
