"""Classify failures of storage: permanent, transient, or a refusal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


class NotAFileError(OSError):
    """The path is neither a file nor a folder."""


PERMANENT = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotAFileError,
)
"""Errors that a retry does not cure."""

REFUSALS = (ValueError, TypeError, AttributeError, NotImplementedError)
"""Errors of libraries for options that they do not know or cannot combine."""

_NO_CREDENTIALS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "SSOTokenLoadError",
        "UnauthorizedSSOTokenError",
        "ProfileNotFound",
        "DefaultCredentialsError",
        "CredentialUnavailableError",
        "ClientAuthenticationError",
    }
)
"""Errors of botocore, google-auth and azure-identity for credentials that are not there."""
_ABSENT = {404, 410}
_RETRY_STATUS = {408, 425, 429}


def storage_errors() -> tuple[type[BaseException], ...]:
    """Return OSError, and the errors of the storage libraries in use."""
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
    """Return the HTTP status that an error carries, or None."""
    status = getattr(error, "status", None) or getattr(error, "code", None)
    answer = getattr(error, "response", None)
    if status is None and isinstance(answer, Mapping):  # botocore's
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def lacks_credentials(error: BaseException) -> bool:
    """Return whether a library found no credentials on this machine."""
    return any(kind.__name__ in _NO_CREDENTIALS for kind in type(error).__mro__)


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed."""
    if lacks_credentials(error):
        return False
    status = status_of(error)
    if status is not None:
        return status in _RETRY_STATUS or status >= 500
    return isinstance(error, storage_errors()) and not isinstance(error, PERMANENT)


def real_error(error: FileNotFoundError) -> BaseException:
    """Return the error behind a FileNotFoundError: fsspec's web files hide every error behind one.

    It may be a library's refusal of its options, such as a password in a URL beside a header with
    another.
    """
    cause = error.__cause__
    real: tuple[type[BaseException], ...] = (*REFUSALS, *storage_errors())
    if (
        not isinstance(cause, real)
        or isinstance(cause, FileNotFoundError)
        or status_of(cause) in _ABSENT
    ):
        return error
    return cause


def raise_real_error(operation: Callable[[], T]) -> T:
    """Return `operation()`; raise the error behind a FileNotFoundError."""
    try:
        return operation()
    except FileNotFoundError as error:
        raise real_error(error) from None
