"""Readers of shards of samples: what data sets for training are packed as."""

from __future__ import annotations

from dataclasses import replace

from rayingest.api.dataset import Dataset
from rayingest.api.readers.common import BLOCK_BYTES, agree, described
from rayingest.options.checked import checked
from rayingest.options.types import (
    Bytes,
    Flag,
    Folder,
    Names,
    Place,
    Positive,
    StorageOptions,
    Urls,
)


@checked(agree)
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
    made = described(
        "webdataset",
        urls,
        index,
        block_bytes,
        storage_options,
        cache_dir,
        cache_bytes,
        options=more,
    )
    return replace(made, strict=strict, allow_pipe=allow_pipe)


@checked(agree)
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
    return described(
        "mds", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options=more
    )


@checked(agree)
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
    return described(
        "litdata",
        urls,
        index,
        block_bytes,
        storage_options,
        cache_dir,
        cache_bytes,
        options={"max_expansion": max_expansion},
    )


@checked(agree)
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
        lists: the features that are lists: 1-D arrays, or lists of bytes, of any length; empty where a record has none
            of that name. Any other must hold one value.
        examples: False for records of other kinds: each is one field, `record`, of bytes.
    """
    more = {"lists": lists, "examples": examples, "max_expansion": max_expansion}
    return described(
        "tfrecord", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options=more
    )


@checked(agree)
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
    return described(
        "lmdb",
        urls,
        index,
        block_bytes,
        storage_options,
        cache_dir,
        cache_bytes,
        options={"skip": skip},
    )
