"""Readers of rows: tables of columns, lines of fields, arrays."""

from __future__ import annotations

from rayingest.api.dataset import Dataset
from rayingest.api.readers.common import BLOCK_BYTES, agree, described
from rayingest.formats.json_columns import check_types
from rayingest.options.checked import checked
from rayingest.options.types import (
    Bytes,
    Character,
    Folder,
    Names,
    Place,
    Positive,
    StorageOptions,
    Texts,
    Urls,
)


@checked(agree)
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
    return described("parquet", urls, index, block_bytes, storage_options, cache_dir, cache_bytes)


@checked(agree)
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
    return described("arrow", urls, index, block_bytes, storage_options, cache_dir, cache_bytes)


@checked(agree)
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
    return described(
        "csv", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options=more
    )


@checked(agree)
def read_json(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    types: Texts | None = None,
    max_expansion: Positive | None = None,
) -> Dataset:
    """Objects of JSON Lines files (.jsonl, .ndjson, .json, plain or .gz or .zst). Arguments as of `read_webdataset`.

    Args:
        types: of the fields to read, in Arrow's words, such as `{"tokens": "list<int32>", "label": "int8"}`: "bool",
            "string", numbers and lists of numbers. Others are left out; where a field is not there, the value is None;
            a value of another type is an error of its block. Lists of numbers come as arrays, five times as fast with
            `pip install 'rayingest[json]'`. Default: all fields, as the Python objects that `json.loads` makes.
    """
    check_types(types or {})
    return described(
        "json_lines",
        urls,
        index,
        block_bytes,
        storage_options,
        cache_dir,
        cache_bytes,
        options={"types": types, "max_expansion": max_expansion},
    )


@checked(agree)
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
    return described(
        "npy",
        urls,
        index,
        block_bytes,
        storage_options,
        cache_dir,
        cache_bytes,
        options={"max_expansion": max_expansion},
    )


@checked(agree)
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
    return described(
        "hdf5",
        urls,
        index,
        block_bytes,
        storage_options,
        cache_dir,
        cache_bytes,
        options={"fields": fields},
    )


@checked(agree)
def read_lance(
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    version: Positive | None = None,
) -> Dataset:
    """Rows of Lance's data sets on local disks. Arguments as of `read_webdataset`.

    Args:
        version: of each data set, the one that is read; default: the last when the loader is made.
    """
    more = {"version": version}
    return described(
        "lance", urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options=more
    )
