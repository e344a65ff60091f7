"""Declare the readers of files, one for each format."""

from __future__ import annotations

from rayingest.api.dataset import Dataset
from rayingest.api.readers.common import ReadOptions, Unpack, read, reader, with_read_options
from rayingest.formats import get_format
from rayingest.formats.protocol import check_options
from rayingest.options import (
    Character,
    Flag,
    FormatOptions,
    Names,
    Positive,
    Text,
    Texts,
    Urls,
)


@reader
def read_webdataset(
    urls: Urls,
    *,
    strict: Flag = True,
    max_expansion: Positive | None = None,
    allow_pipe: Flag = False,
    **shared: Unpack[ReadOptions],
) -> Dataset:
    """Read samples in WebDataset tar shards (.tar, .tar.gz, .tgz).

    A sample is the files with one key, a field for each extension.

    Args:
        strict: refuse tars without an end marker, or with data behind it.
        max_expansion: refuse compressed shards of more than 256 MiB that are larger than this
            factor times their compressed size. Default: 200.
        allow_pipe: run the shell commands of URLs such as `pipe:ssh host cat train-{000..009}.tar`.
            Each command writes one plain tar, a shard that is read from its begin to its end. Put
            secrets into environment variables (`$TOKEN`), not into the command.
    """
    return read(
        "webdataset",
        urls,
        shared,
        {"max_expansion": max_expansion},
        strict=strict,
        allow_pipe=allow_pipe,
    )


@reader
def read_parquet(urls: Urls, **shared: Unpack[ReadOptions]) -> Dataset:
    """Read rows of Parquet files; a block is a row group."""
    return read("parquet", urls, shared)


@reader
def read_json(
    urls: Urls,
    *,
    types: Texts | None = None,
    max_expansion: Positive | None = None,
    **shared: Unpack[ReadOptions],
) -> Dataset:
    """Read objects of JSON Lines files (.jsonl, .ndjson, .json, plain or .gz or .zst).

    Args:
        types: the fields to read and their types in Arrow's words, as in
            `{"tokens": "list<int32>", "label": "int8"}`: "bool", "string", numbers and lists of
            numbers. Other fields are left out; a missing field is None; a value of another type is
            an error of its block. Lists of numbers become arrays, five times as fast with
            `pip install 'rayingest[json]'`. Default: all fields, as `json.loads` returns them.
        max_expansion: as for `read_webdataset`.
    """
    if types:
        from rayingest.formats.json_columns import check_types

        check_types(types)
    return read("json_lines", urls, shared, {"types": types, "max_expansion": max_expansion})


@reader
def read_arrow(urls: Urls, **shared: Unpack[ReadOptions]) -> Dataset:
    """Read rows of Arrow IPC files and streams; a block is a run of record batches.

    Feather (version 2) files and folders of Hugging Face datasets are such files.
    """
    return read("arrow", urls, shared)


@reader
def read_csv(
    urls: Urls,
    *,
    types: Texts | None = None,
    names: Names | None = None,
    delimiter: Character | None = None,
    max_expansion: Positive | None = None,
    **shared: Unpack[ReadOptions],
) -> Dataset:
    """Read lines of CSV files (.csv, .tsv, plain or .gz or .zst) that begin with a line of names.

    Args:
        types: types of the columns that are not text, in Arrow's words:
            `{"label": "int64", "weight": "float32"}`. A value of another type is an error; a
            missing value is None.
        names: names of the columns, for files that do not begin with a line of names.
        delimiter: the character between fields. Default: a comma, a tab in .tsv files.
        max_expansion: as for `read_webdataset`.
    """
    return read(
        "csv",
        urls,
        shared,
        {"types": types, "names": names, "delimiter": delimiter, "max_expansion": max_expansion},
    )


@reader
def read_images(urls: Urls, **shared: Unpack[ReadOptions]) -> Dataset:
    """Read image files in folders, one folder for each class.

    Fields are `image`, `label` (the number of the class, in the order of the names), `class`,
    `path` and `size`. The index comes from one listing; no file is opened for it.
    """
    return read("images", urls, shared)


@reader
def read_files(
    urls: Urls, *, suffixes: Names | None = None, **shared: Unpack[ReadOptions]
) -> Dataset:
    """Read files of any kind, such as video and audio, as bytes.

    Fields are `data`, and all those of `read_images` but `image`.

    Args:
        suffixes: of the files to take where `urls` names a folder, as in `[".mp4", ".mkv"]`.
            Default: all files.
    """
    return read("files", urls, shared, {"suffixes": suffixes})


@reader
def read_mds(
    urls: Urls,
    *,
    check_hashes: Flag = False,
    max_expansion: Positive | None = None,
    **shared: Unpack[ReadOptions],
) -> Dataset:
    """Read samples of MosaicML's MDS: folders of shards, plain or compressed, with an index.json.

    Args:
        check_hashes: compare shards that are not compressed with the hashes in index.json too; for
            that, each is read whole once, when the index is made.
        max_expansion: as for `read_webdataset`.
    """
    return read("mds", urls, shared, {"check_hashes": check_hashes, "max_expansion": max_expansion})


@reader
def read_litdata(
    urls: Urls, *, max_expansion: Positive | None = None, **shared: Unpack[ReadOptions]
) -> Dataset:
    """Read samples of LitData: folders of chunks with an index.json.

    Fields of nested samples are called `a.b`, items of lists and tuples by their number.

    Args:
        max_expansion: as for `read_webdataset`.
    """
    return read("litdata", urls, shared, {"max_expansion": max_expansion})


@reader
def read_npy(
    urls: Urls, *, max_expansion: Positive | None = None, **shared: Unpack[ReadOptions]
) -> Dataset:
    """Read rows of arrays in NumPy files.

    An .npy file gives the field `array`; an .npz file gives a field for each array, all with the
    same number of rows.

    Args:
        max_expansion: as for `read_webdataset`.
    """
    return read("npy", urls, shared, {"max_expansion": max_expansion})


@reader
def read_hdf5(urls: Urls, *, fields: Names | None = None, **shared: Unpack[ReadOptions]) -> Dataset:
    """Read rows of the data sets of HDF5 files, a field for each data set.

    Args:
        fields: paths of the data sets to read (`group/name`), all with the same number of rows.
            Default: all data sets that have rows.
    """
    return read("hdf5", urls, shared, {"fields": fields})


@reader
def read_lmdb(
    urls: Urls, *, skip: Names = ("__keys__", "__len__"), **shared: Unpack[ReadOptions]
) -> Dataset:
    """Read entries of LMDB databases on local disks, in the order of their keys.

    Fields are `key` and `value`, both bytes.

    Args:
        skip: keys of entries that are no samples.
    """
    return read("lmdb", urls, shared, {"skip": skip})


@reader
def read_lance(
    urls: Urls, *, version: Positive | None = None, **shared: Unpack[ReadOptions]
) -> Dataset:
    """Read rows of Lance data sets on local disks.

    Args:
        version: the version of each data set to read. Default: the latest when the loader is made.
    """
    return read("lance", urls, shared, {"version": version})


@reader
def read_tfrecord(
    urls: Urls,
    *,
    lists: Names = (),
    examples: Flag = True,
    max_expansion: Positive | None = None,
    **shared: Unpack[ReadOptions],
) -> Dataset:
    """Read records of TFRecord files, each a `tf.train.Example`; its features are the fields.

    Args:
        lists: features that are lists of any length: 1-D arrays, or lists of bytes; empty where a
            record does not have the feature. Any other feature must hold one value.
        examples: False for records of another kind: each is one field, `record`, of bytes.
        max_expansion: as for `read_webdataset`.
    """
    return read(
        "tfrecord",
        urls,
        shared,
        {"lists": lists, "examples": examples, "max_expansion": max_expansion},
    )


@with_read_options
def read_format(
    name: Text,
    urls: Urls,
    *,
    options: FormatOptions | None = None,
    **shared: Unpack[ReadOptions],
) -> Dataset:
    """Read shards of a format of your own, registered with `rayingest.formats.register_format`.

    Its fields are the columns that the format reads.

    Args:
        name: the format's `name`. It must be registered in this process.
        options: the format's own options, those in its `option_names`.
    """
    check_options(get_format(name), options or {})
    return read(name, urls, shared, options)
