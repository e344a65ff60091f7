"""Readers of folders in which a file is a sample."""

from __future__ import annotations

from rayingest.api.dataset import Dataset
from rayingest.api.readers.common import BLOCK_BYTES, agree, described
from rayingest.options.checked import checked
from rayingest.options.types import Bytes, Folder, Names, Place, StorageOptions, Urls


@checked(agree)
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
    return described("images", urls, index, block_bytes, storage_options, cache_dir, cache_bytes)


@checked(agree)
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
    return described(
        "files",
        urls,
        index,
        block_bytes,
        storage_options,
        cache_dir,
        cache_bytes,
        options={"suffixes": suffixes},
    )
