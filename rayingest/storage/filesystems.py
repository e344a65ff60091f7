"""fsspec's filesystems: which one a URL means, with which settings, and what is asked of one without being fooled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import fsspec.core

from rayingest.storage.fsspec_log import hide_credentials

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


def whole_if_there(fs: Any, name: str) -> bytes | None:
    """A file's bytes; None where there is none."""
    try:
        return bytes(fs.cat_file(name))
    except FileNotFoundError:
        return None


def fresh_info(fs: Any, name: str) -> dict[str, Any]:
    """What is known of a file now: a listing that the filesystem remembers would hide that it has changed."""
    fs.invalidate_cache(fs._parent(name))
    return dict(fs.info(name))
