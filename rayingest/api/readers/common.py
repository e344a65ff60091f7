"""Declare readers: the options that all of them share are written here, once.

Owns those options, their defaults and their documentation, and how a reader becomes a `Dataset`.
A reader declares only the options of its own format.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, Unpack, get_type_hints

from rayingest.api.dataset import Dataset
from rayingest.build.description import Source
from rayingest.build.one_source import OneSource
from rayingest.errors import ConfigError
from rayingest.options import Bytes, Folder, Place, StorageOptions, Urls, checked
from rayingest.storage.disk_cache import DiskCache
from rayingest.storage.file_info import local_path

__all__ = [
    "BLOCK_BYTES",
    "READERS",
    "ReadOptions",
    "Unpack",
    "absolute",
    "read",
    "reader",
    "with_read_options",
]

BLOCK_BYTES = 2 << 20

Reader = TypeVar("Reader", bound=Callable[..., Dataset])


class ReadOptions(TypedDict, total=False):
    """The options of every reader, beside `urls`."""

    index: Place | None
    block_bytes: Bytes
    storage_options: StorageOptions | None
    cache_dir: Folder | None
    cache_bytes: Bytes | None


_DEFAULTS: Mapping[str, Any] = {"block_bytes": BLOCK_BYTES}
"""Of the options that all readers share; None for the others."""

_URLS = """\
    urls: a path, folder, glob, brace range (`train-{000000..001023}.tar`), any URL that fsspec
        opens, or a list of them."""

_SHARED = """\
    index: file or folder in which the index is cached. Default: the user's cache folder.
    block_bytes: the approximate number of bytes of a block, which is fetched at a time.
    storage_options: for fsspec; never stored.
    cache_dir: folder of this node that caches blocks of remote shards, shared by all readers that
        name it.
    cache_bytes: limit of `cache_dir`, the same for all who use it; what was used longest ago is
        removed first. Give both or neither."""

READERS: dict[str, Callable[..., Dataset]] = {}
"""Readers by the name of their format in a configuration."""


def reader(call: Reader) -> Reader:
    """Make a reader from `read_<name>(urls, *, its own options, **shared)`, also for YAML."""
    READERS[call.__name__.removeprefix("read_")] = wrapper = with_read_options(call)
    return wrapper


def with_read_options(call: Reader) -> Reader:
    """Give a call the options of every reader, in its signature and docstring, and check them all.

    The call takes them as `**shared: Unpack[ReadOptions]`.
    """
    own = [p for p in inspect.signature(call).parameters.values() if p.kind is not p.VAR_KEYWORD]
    hints = get_type_hints(ReadOptions, include_extras=True)
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_DEFAULTS.get(name),
            annotation=ReadOptions.__annotations__[name].__forward_arg__,
        )
        for name in hints
    ]
    parameters = sorted([*own[:1], *shared, *own[1:]], key=lambda p: p.kind)
    signature = inspect.Signature(parameters, return_annotation="Dataset")
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__option_types__ = hints  # type: ignore[attr-defined]
    call.__doc__ = _document(inspect.getdoc(call) or "")
    return checked(_check_cache)(call)  # type: ignore[return-value]


def read(
    format_name: str,
    urls: Urls,
    shared: ReadOptions,
    own: Mapping[str, Any] | None = None,
    *,
    strict: bool = True,
    allow_pipe: bool = False,
) -> Dataset:
    """Return data in a format, whose `own` options are the format's; None stands for its defaults.

    Relative paths become absolute: the process that makes the loader may have another folder, as
    workers of Ray Train do.
    """
    index, cache_dir = shared.get("index"), shared.get("cache_dir")
    cache_bytes = shared.get("cache_bytes")
    cache = None
    if cache_dir is not None and cache_bytes is not None:
        cache = DiskCache(absolute(cache_dir), cache_bytes)
    source = Source(
        format_name,
        absolute(urls) if isinstance(urls, (str, os.PathLike)) else tuple(map(absolute, urls)),
        None if index is None else absolute(index),
        shared.get("block_bytes", BLOCK_BYTES),
        strict=strict,
        storage_options=dict(shared.get("storage_options") or {}),
        options={name: value for name, value in (own or {}).items() if value is not None},
        allow_pipe=allow_pipe,
        cache=cache,
    )
    return Dataset(OneSource(source=source))


def absolute(url: str | os.PathLike[str]) -> str:
    """Return a relative path as an absolute one, a URL as it is."""
    text = os.fspath(url)
    if "://" in text or not text.strip() or local_path(text) is None:
        return text
    return os.path.join(os.getcwd(), os.path.expanduser(text))  # noqa: PTH109, PTH111


def _check_cache(given: Mapping[str, Any]) -> None:
    if (given.get("cache_dir") is None) != (given.get("cache_bytes") is None):
        raise ConfigError(
            "a disk cache has a folder and a limit: cache_dir and cache_bytes; give both or neither"
        )


def _document(text: str) -> str:
    """Return a reader's docstring with the arguments that all readers share."""
    summary, _, own = text.partition("\n\nArgs:\n")
    parts = [_URLS, _SHARED, *([own] if own else [])]
    return "\n".join([f"{summary}\n\nNothing is read before `loader`.\n\nArgs:", *parts])
