"""What can be read: one function a format, each of which gives a `Dataset`.

Owns their options, in one place for the API and for configurations, and what relative paths mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rayingest.dataset import Dataset
from rayingest.errors import ConfigError
from rayingest.options import (
    Bytes,
    Character,
    Flag,
    Folder,
    Names,
    Place,
    Positive,
    StorageOptions,
    Texts,
    Urls,
    checked,
)
from rayingest.storage.disk_cache import DiskCache

BLOCK_BYTES = 2 << 20


def _agree(given: Mapping[str, Any]) -> None:
    if (given.get("cache_dir") is None) != (given.get("cache_bytes") is None):
        raise ConfigError("cache_dir and cache_bytes: give both, a folder and how much it may hold, or neither")


@checked(_agree)
def read_webdataset(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    strict: Flag = True,
    max_expansion: Positive | None = None,
    allow_pipe: Flag = False,
) -> Dataset:
    """Samples in WebDataset tar shards (.tar, .tar.gz, .tgz): files with one key, one field per extension.

    Args:
        urls: a path, folder, glob, brace range (`train-{000000..001023}.tar`), any URL that fsspec opens, or a list.
        index: where to keep the index, a file or a folder; default: the user's cache folder.
        block_bytes: how much to fetch at a time.
        storage_options: for fsspec; never stored.
        cache_dir: a folder of the node's for what is read of remote shards, shared by all readers that name it. At most
            `cache_bytes` are kept; what was used longest ago goes first.
        cache_bytes: its limit, the same for all who use it.
        strict: refuse tars without an end marker or with data behind it.
        max_expansion: refuse compressed shards that grow by more than this factor (200), once they are over 256 MiB.
        allow_pipe: run the shell commands of URLs such as `pipe:ssh host cat train-{000..009}.tar`, each of which
            writes a plain tar: one shard, read from its beginning to its end at a time. Secrets belong into variables
            of the environment (`$TOKEN`), not into the command.
    """
    more = {"max_expansion": max_expansion}
    made = _read("webdataset", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options=more)
    return replace(made, strict=strict, allow_pipe=allow_pipe)


@checked(_agree)
def read_parquet(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
) -> Dataset:
    """Rows of Parquet files; a block is a row group. Arguments as of `read_webdataset`."""
    return _read("parquet", urls, index, block_bytes, storage_options, cache_dir, cache_bytes)


@checked(_agree)
def read_json(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    max_expansion: Positive | None = None,
) -> Dataset:
    """Objects of JSON Lines files (.jsonl, .ndjson, .json, plain or .gz or .zst). Arguments as of `read_webdataset`."""
    return _read(
        "json_lines",
        urls,
        index,
        block_bytes,
        storage_options,
        cache_dir,
        cache_bytes,
        options={"max_expansion": max_expansion},
    )


@checked(_agree)
def read_arrow(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
) -> Dataset:
    """Rows of Arrow IPC files and streams, Feather (version 2) and folders of Hugging Face datasets among them; a block
    is a run of record batches. Arguments as of `read_webdataset`.
    """
    return _read("arrow", urls, index, block_bytes, storage_options, cache_dir, cache_bytes)


@checked(_agree)
def read_csv(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    types: Texts | None = None,
    names: Names | None = None,
    delimiter: Character | None = None,
    max_expansion: Positive | None = None,
) -> Dataset:
    """Lines of CSV files (.csv, .tsv, plain or .gz or .zst), with a first line of names. Arguments as of
    `read_webdataset`.

    Args:
        types: of columns that are not text, in Arrow's words: `{"label": "int64", "weight": "float32"}`. Values that
            are not of their type are errors; where there is none, the value is None.
        names: of the columns, where files do not begin with a line of them.
        delimiter: what stands between fields; default: a comma, in .tsv files a tab.
    """
    more = {"types": types, "names": names, "delimiter": delimiter, "max_expansion": max_expansion}
    return _read("csv", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options=more)


@checked(_agree)
def read_images(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
) -> Dataset:
    """Image files in folders, one folder a class: fields `image`, `label` (the class's number, in the order of their
    names), `class`, `path` and `size`. Arguments as of `read_webdataset`.

    Nothing is opened for the index: it is made of one listing.
    """
    return _read("images", urls, index, block_bytes, storage_options, cache_dir, cache_bytes)


@checked(_agree)
def read_files(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    suffixes: Names | None = None,
) -> Dataset:
    """Files of any kind, video and audio among them, as bytes: field `data`, and the others as of `read_images`.
    Arguments as of `read_webdataset`.

    Args:
        suffixes: of the files to take where `urls` names a folder, as in `[".mp4", ".mkv"]`; default: all.
    """
    return _read(
        "files", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options={"suffixes": suffixes}
    )


@checked(_agree)
def read_mds(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    check_hashes: Flag = False,
    max_expansion: Positive | None = None,
) -> Dataset:
    """Samples of MosaicML's MDS: folders of shards, plain or compressed, with an index.json. Arguments as of
    `read_webdataset`.

    Args:
        check_hashes: hold shards that are not compressed to the hashes in index.json too: each is read whole once, for
            the index.
    """
    more = {"check_hashes": check_hashes, "max_expansion": max_expansion}
    return _read("mds", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options=more)


@checked(_agree)
def read_litdata(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    max_expansion: Positive | None = None,
) -> Dataset:
    """Samples of LitData: folders of chunks with an index.json. Fields of nested samples are called `a.b`, items of
    lists and tuples by their number. Arguments as of `read_webdataset`.
    """
    return _read(
        "litdata",
        urls,
        index,
        block_bytes,
        storage_options,
        cache_dir,
        cache_bytes,
        options={"max_expansion": max_expansion},
    )


@checked(_agree)
def read_hdf5(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    fields: Names | None = None,
) -> Dataset:
    """Rows of the data sets of HDF5 files, a field each. Arguments as of `read_webdataset`.

    Args:
        fields: the data sets to read, by their paths (`group/name`), all of as many rows; default: all that have rows.
    """
    return _read("hdf5", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options={"fields": fields})


@checked(_agree)
def read_lmdb(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    skip: Names = ("__keys__", "__len__"),
) -> Dataset:
    """Entries of LMDB databases on local disks, in the order of their keys: fields `key` and `value`, of bytes.
    Arguments as of `read_webdataset`.

    Args:
        skip: keys of entries that are no samples.
    """
    return _read("lmdb", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options={"skip": skip})


@checked(_agree)
def read_npy(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    max_expansion: Positive | None = None,
) -> Dataset:
    """Rows of arrays in NumPy's files: of an .npy as field `array`, of an .npz as one field an array, all of as many
    rows. Arguments as of `read_webdataset`.
    """
    return _read(
        "npy",
        urls,
        index,
        block_bytes,
        storage_options,
        cache_dir,
        cache_bytes,
        options={"max_expansion": max_expansion},
    )


@checked(_agree)
def read_tfrecord(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    lists: Names = (),
    examples: Flag = True,
    max_expansion: Positive | None = None,
) -> Dataset:
    """Records of TFRecord files, each a `tf.train.Example`; fields are its features. Arguments as of
    `read_webdataset`.

    Args:
        lists: the features that are lists: 1-D arrays, or lists of bytes, of any length. Any other must hold one value.
        examples: False for records of other kinds: each is one field, `record`, of bytes.
    """
    more = {"lists": lists, "examples": examples, "max_expansion": max_expansion}
    return _read("tfrecord", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options=more)


def _read(
    format_name: str,
    urls: Urls,
    index: Place | None,
    block_bytes: int,
    storage_options: Mapping[str, Any] | None,
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int | None,
    options: Mapping[str, Any] | None = None,
) -> Dataset:
    return Dataset(
        format_name,
        here(urls) if isinstance(urls, (str, os.PathLike)) else tuple(map(here, urls)),
        None if index is None else here(index),
        block_bytes,
        storage_options=dict(storage_options or {}),
        cache=DiskCache(here(cache_dir), cache_bytes) if cache_dir is not None and cache_bytes else None,
        options={name: value for name, value in (options or {}).items() if value is not None},
    )


def here(url: str | os.PathLike[str]) -> str:
    """A relative path made absolute: whoever makes the loader may stand elsewhere, as workers of Ray Train do."""
    text = os.fspath(url)
    if "://" in text or "::" in text or not text.strip() or text.startswith("pipe:"):
        return text
    return os.path.join(os.getcwd(), os.path.expanduser(text))  # noqa: PTH109, PTH111


READERS: dict[str, Callable[..., Dataset]] = {
    reader.__name__.removeprefix("read_"): reader
    for reader in (
        read_webdataset,
        read_parquet,
        read_json,
        read_arrow,
        read_csv,
        read_images,
        read_files,
        read_mds,
        read_litdata,
        read_npy,
        read_hdf5,
        read_lmdb,
        read_tfrecord,
    )
}
"""By the names of formats in a configuration."""
