"""What a failure of storage means."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


class NotAFileError(OSError):
    """What is there is neither a file nor a folder."""


PERMANENT = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotAFileError,
)
"""Errors that another try does not mend."""

REFUSALS = (ValueError, TypeError, AttributeError, NotImplementedError)
"""Errors of a library that was given options it does not know, or cannot work with."""

_ABSENT = {404, 410}
_RETRY_STATUS = {408, 425, 429}


def storage_errors() -> tuple[type[BaseException], ...]:
    """OSError, and the errors that storage libraries in use have beside it."""
    names = {"aiohttp": ("ClientError",), "botocore.exceptions": ("BotoCoreError", "ClientError")}
    names |= {"gcsfs.retry": ("HttpError",), "azure.core.exceptions": ("AzureError",)}
    found = (
        getattr(sys.modules[m], n, None)
        for m, classes in names.items()
        if m in sys.modules
        for n in classes
    )
    return (OSError, *(error for error in found if error is not None))


def status_of(error: BaseException) -> int | None:
    """The HTTP status an error carries, None for one that carries none."""
    status = getattr(error, "status", None) or getattr(error, "code", None)
    answer = getattr(error, "response", None)
    if status is None and isinstance(answer, Mapping):  # botocore's
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def is_transient(error: BaseException) -> bool:
    """Whether another try may succeed."""
    status = status_of(error)
    if status is not None:
        return status in _RETRY_STATUS or status >= 500
    return isinstance(error, storage_errors()) and not isinstance(error, PERMANENT)


def real_error(error: FileNotFoundError) -> BaseException:
    """What really happened: fsspec's web files are "not found" whatever went wrong in looking for them.

    That may be a library's refusal of what it was given, as of a password in a URL beside a header with another.
    """
    cause = error.__cause__
    told: tuple[type[BaseException], ...] = (*REFUSALS, *storage_errors())
    if (
        not isinstance(cause, told)
        or isinstance(cause, FileNotFoundError)
        or status_of(cause) in _ABSENT
    ):
        return error
    return cause


def raise_real_error(operation: Callable[[], T]) -> T:
    """`operation()`, of which a FileNotFoundError is what really happened."""
    try:
        return operation()
    except FileNotFoundError as error:
        raise real_error(error) from None
