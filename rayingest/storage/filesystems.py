"""Choose the fsspec filesystem of a URL and its settings; hide credentials in its log lines.

At DEBUG, fsspec and its filesystems log whole URLs. A filter on their loggers redacts the text. The
logs of the libraries below them (such as botocore) are out of its reach.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import fsspec.core

from rayingest.storage.redact import redact_text

_S3_CONFIG = {"max_pool_connections": 64, "retries": {"total_max_attempts": 1}}
"""Settings of botocore.

Connections per process: with the default of 10, other reads would wait. Attempts per call: with the
default of five for each attempt here, an address without a server took most of a minute to fail.
"""
_S3_WITH_USER = re.compile(r"(^|::)s3a?://(?!arn:)[^/]*(@|:(?!\d+/).*@)")
"""A user, or a password that may contain a slash.

s3fs would take both for the bucket's name, and log it.
"""

# Best first: what changes with the contents comes before what changes with a write.
_MARKS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")


def filesystem_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the filesystem, and the path in it. Raises errors of fsspec and its libraries."""
    hide_credentials()
    if _S3_WITH_USER.search(url):
        raise ValueError(
            "an s3:// URL cannot have a user or password: give "
            'storage_options={"key": ..., "secret": ...}'
        )
    if url.startswith(("s3://", "s3a://")):
        options = {
            **options,
            "config_kwargs": {**_S3_CONFIG, **(options.get("config_kwargs") or {})},
        }
    fs, name = fsspec.core.url_to_fs(url, **options)
    return fs, name


_EXTRAS = {"s3": "'rayingest[s3]'", "s3a": "'rayingest[s3]'"}
_PACKAGES = {
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "adl", "az"), "adlfs"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    **dict.fromkeys(("http", "https"), "aiohttp"),
    "hf": "huggingface_hub",
    "oss": "ossfs",
    "smb": "smbprotocol",
    "webhdfs": "requests",
}
"""Libraries by the protocols that need them; this package tests S3, which has an extra."""


def install_advice(url: str) -> str:
    """Return the command that installs the library of a URL's protocol."""
    protocol = url.rpartition("::")[2].partition("://")[0].lower()
    package = _EXTRAS.get(protocol) or _PACKAGES.get(protocol)
    if package is None:
        return f"install the library that fsspec names for {protocol}://"
    return f"pip install {package}"


def protocols(fs: Any) -> tuple[str, ...]:
    """Return the protocols of a filesystem's URLs."""
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def read_whole_if_exists(fs: Any, name: str) -> bytes | None:
    """Return a file's bytes, or None if it does not exist."""
    try:
        return bytes(fs.cat_file(name))
    except FileNotFoundError:
        return None


def fresh_info(fs: Any, name: str) -> dict[str, Any]:
    """Return the current info of a file, without the filesystem's cached listing."""
    fs.invalidate_cache(fs._parent(name))
    return dict(fs.info(name))


def mark_of(info: dict[str, Any]) -> str:
    """Return the mark in fsspec's info of a file."""
    for name in _MARKS:
        value = info.get(name)
        if isinstance(value, datetime):
            value = value.timestamp()
        if value not in {None, ""}:
            # Some storages give a float in a listing and a date in the info of one file.
            return f"{value:.6f}" if isinstance(value, float) else str(value).strip('"')
    return ""


_LOGGERS = (
    *("fsspec", "fsspec.http", "fsspec.cached", "fsspec.reference", "fsspec.generic"),
    *("s3fs", "gcsfs", "gcsfs.credentials", "adlfs", "adlfs.spec"),
)


class _Redacted(logging.Filter):
    """Redact every record; of an exception keep the last line only, since its frames quote more."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            text += "".join(traceback.format_exception_only(record.exc_info[1])).rstrip()
            record.exc_info = record.exc_text = None
        record.msg, record.args = redact_text(text), ()
        return True


_FILTER = _Redacted()


def hide_credentials() -> None:
    """Install the filter, for this process; calling it again is harmless."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
