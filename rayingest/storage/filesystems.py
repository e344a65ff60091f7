"""fsspec's filesystems: which one a URL means, with which settings, and what is asked of one without being fooled."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping
from typing import Any

import fsspec.core

from rayingest.storage.redact import redact_text

_S3_CONFIG = {"max_pool_connections": 64, "retries": {"total_max_attempts": 1}}
"""Connections of a process: by default 10, which others would wait for. Tries of a call: by default five for each of
ours, so that an address with nobody at it took most of a minute to be told.
"""
_S3_WITH_USER = re.compile(r"(^|::)s3a?://(?!arn:)[^/]*(@|:(?!\d+/).*@)")
"""With a password that may have a slash in it. s3fs takes all of it for a bucket's name, asks for that and logs it."""


def filesystem_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The filesystem and the path in it. Raises what fsspec and the library below it do."""
    hide_credentials()
    if _S3_WITH_USER.search(url):
        raise ValueError(
            'an s3:// URL has no user and password: give storage_options={"key": ..., "secret": ...}'
        )
    if url.startswith(("s3://", "s3a://")):
        options = {
            **options,
            "config_kwargs": {**_S3_CONFIG, **(options.get("config_kwargs") or {})},
        }
    fs, name = fsspec.core.url_to_fs(url, **options)
    return fs, name


def protocols(fs: Any) -> tuple[str, ...]:
    """What the URLs of its files begin with."""
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def read_whole_if_exists(fs: Any, name: str) -> bytes | None:
    """A file's bytes; None where there is none."""
    try:
        return bytes(fs.cat_file(name))
    except FileNotFoundError:
        return None


def fresh_info(fs: Any, name: str) -> dict[str, Any]:
    """What is known of a file now: a listing that the filesystem remembers would hide that it has changed."""
    fs.invalidate_cache(fs._parent(name))
    return dict(fs.info(name))


# fsspec's own log lines, and those of its file systems, without credentials: at DEBUG they write
# whole URLs.
#
# Owns a filter on these loggers, which changes nothing but text. What the libraries below it
# (botocore and its like) write when told to is theirs.


_LOGGERS = (
    *("fsspec", "fsspec.http", "fsspec.cached", "fsspec.reference", "fsspec.generic"),
    *("s3fs", "gcsfs", "gcsfs.credentials", "adlfs", "adlfs.spec"),
)


class _Redacted(logging.Filter):
    """Lets everything pass, redacted; of an exception only its last line, as its frames quote more."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            text += "".join(traceback.format_exception_only(record.exc_info[1])).rstrip()
            record.exc_info = record.exc_text = None
        record.msg, record.args = redact_text(text), ()
        return True


_FILTER = _Redacted()


def hide_credentials() -> None:
    """From now on, in this process; once is enough."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
