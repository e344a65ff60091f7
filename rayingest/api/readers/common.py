"""What all readers have in common: their arguments, and what relative paths mean."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rayingest.api.dataset import Dataset
from rayingest.errors import ConfigError
from rayingest.options.types import Place, Urls
from rayingest.storage.disk_cache import DiskCache
from rayingest.storage.local_files import local_path

BLOCK_BYTES = 2 << 20


def agree(given: Mapping[str, Any]) -> None:
    """ConfigError for one of the options of a cache without the other."""
    if (given.get("cache_dir") is None) != (given.get("cache_bytes") is None):
        raise ConfigError(
            "cache_dir and cache_bytes: give both, a folder and how much it may hold, or neither"
        )


def described(
    format_name: str,
    urls: Urls,
    index: Place | None,
    block_bytes: int,
    storage_options: Mapping[str, Any] | None,
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int | None,
    options: Mapping[str, Any] | None = None,
) -> Dataset:
    """What a reader gives, for arguments that are held to their kinds; `options` are the format's, None for its own."""
    return Dataset(
        format_name,
        here(urls) if isinstance(urls, (str, os.PathLike)) else tuple(map(here, urls)),
        None if index is None else here(index),
        block_bytes,
        storage_options=dict(storage_options or {}),
        cache=DiskCache(here(cache_dir), cache_bytes)
        if cache_dir is not None and cache_bytes
        else None,
        options={name: value for name, value in (options or {}).items() if value is not None},
    )


def here(url: str | os.PathLike[str]) -> str:
    """A relative path made absolute: whoever makes the loader may stand elsewhere, as workers of Ray Train do."""
    text = os.fspath(url)
    if "://" in text or not text.strip() or local_path(text) is None:
        return text
    return os.path.join(os.getcwd(), os.path.expanduser(text))  # noqa: PTH109, PTH111
