"""The same data nearer, or farther: copies of its first shards on a local disk, and files that are to be read anew.

Owns what is copied and what is not. Descriptions of the data stay as they are but for where they read.
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

from rayingest.api.dataset import Dataset
from rayingest.api.mixture import Mixture
from rayingest.build.statistic import SampleStatistic
from rayingest.errors import ConfigError
from rayingest.formats import get_format
from rayingest.storage.files import Storage
from rayingest.storage.local_files import local_path
from rayingest.storage.redact import redact
from rayingest.storage.urls import Listing

COPIED_BYTES = 256 << 20
_LARGEST_BYTES = 2 << 30
"""A first shard of more is not copied."""
_AT_ONCE = 16
_SMALL_BYTES = 8 << 20
"""Files of no more are fetched with one request."""


def without_cache(dataset: Dataset) -> Dataset:
    """The same without a disk cache, once the system was asked to forget what it keeps of local files."""
    return _replace_sources(dataset, _drop_from_page_cache)


@contextmanager
def copy_first_shards(dataset: Dataset, limit: int = COPIED_BYTES) -> Iterator[Dataset]:
    """The same over copies of each source's first shards in a local folder, up to so many bytes, at least one shard.

    `take`, `skip` and `split` are left out: which samples there are is of no account. ConfigError for what cannot be
    copied.
    """
    folder = Path(tempfile.mkdtemp(prefix="rayingest-probe-"))
    numbers = count()
    try:
        yield _replace_sources(
            dataset, lambda source: _copy(source, folder / str(next(numbers)), limit)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace_sources(dataset: Dataset, made: Callable[[Dataset], Dataset]) -> Dataset:
    """The data set with another in each source's place; one that is no mixture is its own source."""
    if not isinstance(dataset, Mixture):
        return made(dataset)
    return replace(
        dataset,
        sources={name: _replace_sources(source, made) for name, source in dataset.sources.items()},
    )


def _drop_from_page_cache(dataset: Dataset) -> Dataset:
    for files in _shards(dataset, dataset.index_cache().listing):
        for path in filter(None, (local_path(url) for url, _ in files)):
            with contextlib.suppress(OSError):  # whoever reads it says what is wrong
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
    return replace(dataset, cache=None)


def _shards(dataset: Dataset, listing: Listing) -> Iterator[list[tuple[str, int]]]:
    """Of each shard the files that it is made of, and their bytes."""
    format_ = get_format(dataset.format_name)
    return (format_.files(listing.url(i), int(listing.sizes[i])) for i in range(len(listing)))


def _copy(dataset: Dataset, folder: Path, limit: int) -> Dataset:
    listing = dataset.index_cache().listing
    chosen: list[list[tuple[str, int]]] = []
    size = 0
    for files in _shards(dataset, listing):
        if not files or any(nbytes < 0 for _, nbytes in files):
            raise ConfigError(
                f"its data ({dataset.format_name}) is not of files that could be copied one by one"
            )
        nbytes = sum(nbytes for _, nbytes in files)
        if chosen and size + nbytes > limit:
            break
        chosen.append(files)
        size += nbytes
    room = shutil.disk_usage(folder.parent).free
    if size > min(_LARGEST_BYTES, room // 2):
        most = f"at most {_LARGEST_BYTES / 2**30:.3g} GiB are copied, to {tempfile.gettempdir()}"
        raise ConfigError(
            f"its first shards have {size / 2**30:.3g} GiB; {most}, where {room / 2**30:.3g} are free"
        )
    data = folder / "data"
    in_bundles = chosen[0] != [(listing.url(0), int(listing.sizes[0]))]
    copies: list[tuple[str, int, Path]] = []
    for url, nbytes in (file for files in chosen for file in files):
        name = url.removeprefix(listing.root).lstrip("/") if in_bundles else _name(url, len(copies))
        if ".." in Path(name).parts:  # a name that leads out of the folder
            raise ConfigError(f"{redact(url)}: a name with '..' in it is not copied")
        copies.append((url, nbytes, data / name))
    _fetch(dataset.source_work.storage, copies)
    return replace(
        dataset,
        urls=str(data) if in_bundles else tuple(str(target) for _, _, target in copies),
        index=str(folder / "index.rayingest"),
        storage_options={},
        allow_pipe=False,
        limits=tuple(limit for limit in dataset.limits if isinstance(limit, SampleStatistic)),
    )


def _name(url: str, number: int) -> str:
    """One of its own, that ends as the file's does."""
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
