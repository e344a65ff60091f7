"""Bring data nearer or farther: copy its first shards to a local disk, or drop its files' caches.

Owns which shards are copied. A description changes only in where it reads.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from rayingest.api.data import Data, description_of
from rayingest.build.mixture import MixedSources
from rayingest.build.one_source import OneSource
from rayingest.build.statistic import SampleStatistic
from rayingest.errors import ConfigError
from rayingest.formats import get_format
from rayingest.storage.file_info import local_path
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing
from rayingest.storage.redact import redact

AnyData = TypeVar("AnyData", bound=Data[Any])

COPIED_BYTES = 256 << 20
_LARGEST_BYTES = 2 << 30
"""A larger first shard is not copied."""
_AT_ONCE = 16
_SMALL_BYTES = 8 << 20
"""A smaller file is read with one request."""


def without_cache(dataset: AnyData) -> AnyData:
    """Return the data set without a disk cache; its local files leave the system's page cache."""
    return _replace_sources(dataset, _drop_from_page_cache)


@contextmanager
def copy_first_shards(dataset: AnyData, limit: int = COPIED_BYTES) -> Iterator[AnyData]:
    """Copy each source's first shards, at most `limit` bytes but at least one shard.

    Yields the data set over the copies, which are deleted afterwards. It has no `take`, `skip` and
    `split`: which samples it holds does not matter here.

    Raises ConfigError for data that cannot be copied.
    """
    folder = Path(tempfile.mkdtemp(prefix="rayingest-probe-"))
    numbers = count()
    try:
        yield _replace_sources(
            dataset, lambda source: _copy(source, folder / str(next(numbers)), limit)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace_sources(data: AnyData, replacement: Callable[[OneSource], OneSource]) -> AnyData:
    """Replace each source of the data."""

    def replaced(description: Any) -> Any:
        if not isinstance(description, MixedSources):
            return replacement(description)
        sources = {name: replaced(source) for name, source in description.sources.items()}
        return replace(description, sources=sources)

    return type(data)(replaced(description_of(data)))


def _drop_from_page_cache(dataset: OneSource) -> OneSource:
    for files in _shards(dataset, dataset.source.index_cache().listing):
        for path in filter(None, (local_path(url) for url, _ in files)):
            with contextlib.suppress(OSError):  # the reader of the file reports its errors
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
    return replace(dataset, source=replace(dataset.source, cache=None))


def _shards(dataset: OneSource, listing: Listing) -> Iterator[list[tuple[str, int]]]:
    """Yield each shard's files and their bytes."""
    format_ = get_format(dataset.source.format_name)
    return (format_.files(listing.url(i), int(listing.sizes[i])) for i in range(len(listing)))


def _copy(dataset: OneSource, folder: Path, limit: int) -> OneSource:
    listing = dataset.source.index_cache().listing
    chosen: list[list[tuple[str, int]]] = []
    size = 0
    for files in _shards(dataset, listing):
        if not files or any(nbytes < 0 for _, nbytes in files):
            raise ConfigError(
                f"data of the format {dataset.source.format_name} does not consist of files "
                "that can be copied one by one"
            )
        nbytes = sum(nbytes for _, nbytes in files)
        if chosen and size + nbytes > limit:
            break
        chosen.append(files)
        size += nbytes
    room = shutil.disk_usage(folder.parent).free
    if size > min(_LARGEST_BYTES, room // 2):
        raise ConfigError(
            f"the first shards have {size / 2**30:.3g} GiB; the limit for copies is "
            f"the smaller of {_LARGEST_BYTES / 2**30:.3g} GiB and half of the "
            f"{room / 2**30:.3g} GiB that are free in {tempfile.gettempdir()}"
        )
    data = folder / "data"
    in_groups = chosen[0] != [(listing.url(0), int(listing.sizes[0]))]
    copies: list[tuple[str, int, Path]] = []
    for url, nbytes in (file for files in chosen for file in files):
        name = url.removeprefix(listing.root).lstrip("/") if in_groups else _name(url, len(copies))
        if ".." in Path(name).parts:  # the name would leave the folder
            raise ConfigError(f"{redact(url)}: the name contains '..', so the file is not copied")
        copies.append((url, nbytes, data / name))
    _fetch(dataset.source.storage, copies)
    source = replace(
        dataset.source,
        urls=str(data) if in_groups else tuple(str(target) for _, _, target in copies),
        index=str(folder / "index.rayingest"),
        storage_options={},
        allow_pipe=False,
    )
    limits = tuple(limit for limit in dataset.limits if isinstance(limit, SampleStatistic))
    return replace(dataset, source=source, limits=limits)


def _name(url: str, number: int) -> str:
    """Return a unique name with the file's own ending."""
    return f"{number:06d}-{Path(url.partition('?')[0]).name}"


def _fetch(storage: Storage, copies: Sequence[tuple[str, int, Path]]) -> None:
    def one(copy: tuple[str, int, Path]) -> None:
        url, nbytes, target = copy
        target.parent.mkdir(parents=True, exist_ok=True)
        if nbytes <= _SMALL_BYTES:
            target.write_bytes(storage.read_all(url))
            return
        with storage.open(url) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, _SMALL_BYTES)

    with ThreadPoolExecutor(_AT_ONCE, "rayingest-copy") as pool:
        for _ in pool.map(one, copies):
            pass
