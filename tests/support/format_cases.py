"""Test data of every format, written by its own library: forty samples in three shards, with the
fields `id` and `text`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import lance
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import zstandard

import rayingest as ri
from rayingest.api.dataset import Dataset
from tests.support.format_samples import LONGEST, PARTS

Part = Sequence[tuple[int, str]]


@dataclass(frozen=True)
class Case:
    """One way to store samples. `write` writes them to an empty folder, `read` describes a folder
    (a URL).

    `shard`: the file that tests damage. `cut_is_seen`: whether a truncated file is detected if its
    former size is unknown: always, except an empty one ("not empty"), or never. `trusting`: the
    library maps local files into memory and trusts them.
    """

    write: Callable[[Path], None]
    read: Callable[[str], Dataset]
    shard: str
    cut_is_seen: Literal["always", "not empty", "never"] = "always"
    trusting: bool = False


def one_file_each(
    name: str, dump: Callable[[Part], bytes], read: Callable[[str], Dataset], **more: Any
) -> Case:
    """Make the case of a format of independent files; `name` has {} for the shard's number."""

    def write(folder: Path) -> None:
        for number, part in enumerate(PARTS):
            (folder / name.format(number)).write_bytes(dump(part))

    return Case(write, read, name.format(0), **more)


def tar(part: Part) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for i, text in part:
            for extension, data in (("cls", str(i).encode()), ("txt", text.encode())):
                info = tarfile.TarInfo(f"{i:03d}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def table(part: Part) -> pa.Table:
    return pa.table(
        {
            "id": [i for i, _ in part],
            "text": [text for _, text in part],
            "unused": [None] * len(part),
        }
    )


def parquet(part: Part) -> bytes:
    target = io.BytesIO()
    pq.write_table(table(part), target, row_group_size=5)
    return target.getvalue()


def json_lines(part: Part) -> bytes:
    return b"".join(json.dumps({"id": i, "text": text}).encode() + b"\n" for i, text in part)


def arrow_file(part: Part) -> bytes:
    target = io.BytesIO()
    feather.write_feather(table(part), target, chunksize=5)
    return target.getvalue()


def arrow_stream(part: Part) -> bytes:
    target = io.BytesIO()
    with pa.ipc.new_stream(target, table(part).schema) as writer:
        writer.write_table(table(part), max_chunksize=5)
    return target.getvalue()


def csv_lines(part: Part) -> bytes:
    target = io.StringIO(newline="")
    writer = csv.writer(target, quoting=csv.QUOTE_ALL)
    writer.writerows([("id", "text"), *part])
    return target.getvalue().encode()


def arrays(part: Part) -> dict[str, np.ndarray]:
    """Return `id`, and `text` as bytes padded with zeros."""
    rows = np.zeros((len(part), LONGEST), np.uint8)
    for row, (_, text) in zip(rows, part, strict=True):
        row[: len(text)] = np.frombuffer(text.encode(), np.uint8)
    return {"id": np.array([i for i, _ in part]), "text": rows}


def npz(part: Part) -> bytes:
    target = io.BytesIO()
    np.savez(target, **arrays(part))
    return target.getvalue()


def npz_compressed(part: Part) -> bytes:
    target = io.BytesIO()
    np.savez_compressed(target, **arrays(part))
    return target.getvalue()


def npy(part: Part) -> bytes:
    target = io.BytesIO()
    found = arrays(part)
    np.save(target, np.concatenate([found["id"].astype(np.uint8)[:, None], found["text"]], axis=1))
    return target.getvalue()


def hdf5(part: Part) -> bytes:
    target = io.BytesIO()
    with h5py.File(target, "w") as file:
        file["id"] = [i for i, _ in part]
        file.create_dataset(
            "inner/text",
            data=[text for _, text in part],
            chunks=(min(4, len(part)),),
            compression="gzip",
        )
    return target.getvalue()


def hdf5s(folder: str) -> Dataset:
    return ri.read_hdf5(folder, block_bytes=1).select(id="id", text="inner/text")


def write_lmdb(folder: Path) -> None:
    for number, part in enumerate(PARTS):
        with (
            lmdb.open(str(folder / f"s-{number}.lmdb"), subdir=False, map_size=1 << 20) as database,
            database.begin(write=True) as new,
        ):
            for i, text in part:
                new.put(b"%03d" % i, text.encode())
            new.put(b"__len__", b"%d" % len(part))
        (folder / f"s-{number}.lmdb-lock").unlink()


def of_entry(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": int(sample["key"]), "text": sample["value"].decode()}


def lmdbs(folder: str) -> Dataset:
    return ri.read_lmdb(folder, block_bytes=600).map(of_entry)


def of_arrays(sample: dict[str, Any]) -> dict[str, Any]:
    text = bytes(sample["text"]).rstrip(b"\0").decode()
    return {"id": int(sample["id"]), "text": text}


def of_array(sample: dict[str, Any]) -> dict[str, Any]:
    return of_arrays({"id": sample["array"][0], "text": sample["array"][1:]})


def npys(folder: str) -> Dataset:
    return ri.read_npy(folder, block_bytes=2000).map(of_array)


def npzs(folder: str) -> Dataset:
    return ri.read_npy(folder, block_bytes=2000).map(of_arrays)


def webdataset(folder: str) -> Dataset:
    return ri.read_webdataset(folder, block_bytes=3000).select(id="cls", text="txt")


def parquets(folder: str) -> Dataset:
    return ri.read_parquet(folder).select(id="id", text="text")


def jsons(folder: str) -> Dataset:
    return ri.read_json(folder, block_bytes=700).select(id="id", text="text")


def arrows(folder: str) -> Dataset:
    return ri.read_arrow(folder, block_bytes=1500).select(id="id", text="text")


def csvs(folder: str) -> Dataset:
    return ri.read_csv(folder, block_bytes=700, types={"id": "int64"}).select(id="id", text="text")


def write_files(folder: Path) -> None:
    for number, part in enumerate(PARTS):
        (folder / f"class {number}").mkdir()
        for i, text in part:
            (folder / f"class {number}" / f"{i:03d} 100%|:?.txt").write_text(text)


def of_file(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": int(sample["path"].split("/")[1][:3]), "text": sample["data"].decode()}


def files(folder: str) -> Dataset:
    return ri.read_files(folder, block_bytes=600, suffixes=[".txt"]).map(of_file)


DATA = Path(__file__).parents[1] / "data"


def stored(folder: str, read: Callable[[str], Dataset], shard: str, **more: Any) -> Case:
    """Make the case of data that its own library wrote once; see the scripts in tests/data."""
    return Case(
        lambda target: shutil.copytree(DATA / folder, target, dirs_exist_ok=True) and None,
        read,
        shard,
        **more,
    )


def mds(folder: str) -> Dataset:
    return ri.read_mds(folder, block_bytes=600).select(id="id", text="text")


def litdata(folder: str) -> Dataset:
    return ri.read_litdata(folder, block_bytes=600).select(id="id", text="text")


def tfrecords(folder: str) -> Dataset:
    return ri.read_tfrecord(folder, block_bytes=600, lists=["many"]).select(
        id="id", text="text", many="many"
    )


def write_lance(folder: Path) -> None:
    for number, part in enumerate(PARTS):
        lance.write_dataset(table(part), folder / f"s-{number}.lance", max_rows_per_file=7)


def lances(folder: str) -> Dataset:
    return ri.read_lance(folder, block_bytes=300).select(id="id", text="text")


CASES = {
    "webdataset": one_file_each("s-{}.tar", tar, webdataset),
    "webdataset, gzip": one_file_each(
        "s-{}.tar.gz", lambda part: gzip.compress(tar(part)), webdataset
    ),
    "parquet": one_file_each("s-{}.parquet", parquet, parquets),
    "json lines": one_file_each("s-{}.jsonl", json_lines, jsons, cut_is_seen="not empty"),
    "json lines, zstd": one_file_each(
        "s-{}.jsonl.zst", lambda part: zstandard.compress(json_lines(part)), jsons
    ),
    "arrow file": one_file_each("s-{}.feather", arrow_file, arrows),
    "arrow stream": one_file_each("s-{}.arrow", arrow_stream, arrows),
    "csv": one_file_each("s-{}.csv", csv_lines, csvs, cut_is_seen="not empty"),
    "csv, gzip": one_file_each("s-{}.csv.gz", lambda part: gzip.compress(csv_lines(part)), csvs),
    "files": Case(write_files, files, "class 2/020 100%|:?.txt", "never"),
    "mds": stored("mds/plain", mds, "shard.00001.mds"),
    **{
        f"mds, {end}": stored(f"mds/{end}", mds, f"shard.00001.mds.{end}")
        for end in ("zstd", "gz", "bz2", "br", "snappy")
    },
    "tfrecord": stored("tfrecord/samples", tfrecords, "s-0.tfrecord", cut_is_seen="not empty"),
    "litdata": stored("litdata/packed", litdata, "chunk-0-0.bin"),
    "litdata, arrow": stored("litdata/samples", litdata, "chunk-0-0.bin"),
    "npy": one_file_each("s-{}.npy", npy, npys),
    "npz": one_file_each("s-{}.npz", npz, npzs),
    "npz, compressed": one_file_each("s-{}.npz", npz_compressed, npzs),
    "hdf5": one_file_each("s-{}.h5", hdf5, hdf5s),
    "lance": Case(write_lance, lances, f"s-0.lance/_versions/{2**64 - 2}.manifest", trusting=True),
    "lmdb": Case(write_lmdb, lmdbs, "s-0.lmdb", trusting=True),
}


Rows = list[tuple[int, str]]
"""Number and text of each sample."""


def rows(batch: dict[str, Any]) -> Rows:
    """Return number and text of each row of a batch."""
    return list(zip(batch["id"].tolist(), batch["text"], strict=True))


def read(data: Dataset, **options: Any) -> Rows:
    """Read one epoch, in this process unless `options` say otherwise."""
    with data.batch(16, partial="short").loader(**(options or {"workers": 0})) as loader:
        return [row for batch in loader for row in rows(batch)]
