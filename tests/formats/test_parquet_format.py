"""Parquet: row groups as blocks."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rayingest as ri
from rayingest.errors import ConfigError, DataError
from rayingest.formats import get_format
from rayingest.formats.protocol import Shard
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage

FORMAT = get_format("parquet")


def table_of(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int32()),
            "x": rng.random(rows),
            "name": pa.array([f"n{i % 3}" if i % 5 else None for i in range(rows)]),
            "list": pa.array([list(range(i % 4)) for i in range(rows)], pa.list_(pa.int64())),
            "dotted.name": [bytes([i % 256]) for i in range(rows)],
        }
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    table = table_of(100)
    path = str(tmp_path / "t.parquet")
    with pq.ParquetWriter(path, table.schema) as writer:
        for begin, end in ((0, 30), (30, 30), (30, 31), (31, 90), (90, 100)):
            writer.write_table(table.slice(begin, end - begin), row_group_size=1000)
    return path


def size_of(url: str) -> int:
    return Path(url).stat().st_size


def index(url: str) -> ShardBlocks:
    return FORMAT.index(Shard(Storage(), url, size_of(url)), 1)


def read(
    url: str, blocks: ShardBlocks, columns: tuple[str, ...] | None = None, size: int | None = None
) -> list[pa.Table]:
    triples = list(
        zip(blocks.begin.tolist(), blocks.end.tolist(), blocks.samples.tolist(), strict=True)
    )
    return FORMAT.read(Shard(Storage(), url, size or size_of(url)), triples, columns)


def test_what_pyarrow_writes_is_read_back(url: str) -> None:
    """A row group with rows is a block; blocks make the whole table, rows numbered."""
    blocks = index(url)
    assert blocks.samples.tolist() == [30, 1, 59, 10]
    assert (blocks.end - blocks.begin).tolist() == [1, 1, 1, 1]
    whole = pa.concat_tables(read(url, blocks))
    assert whole.drop_columns("__offset__").equals(table_of(100))
    assert whole["__offset__"].to_pylist() == list(range(100))
    assert whole.schema.metadata[b"shard"] == url.encode()


def test_joined_blocks_are_the_whole(url: str) -> None:
    """Holds across a row group without rows."""
    blocks = index(url)
    while len(blocks) > 1:
        blocks = blocks.coarser()
        assert pa.concat_tables(read(url, blocks)).drop_columns("__offset__").equals(table_of(100))


def test_projection_keeps_the_order_asked_for(url: str) -> None:
    """Holds for names with dots and nested columns; an unknown column is an error."""
    found = read(url, index(url), ("list", "dotted.name", "id"))[2]
    assert found.column_names == ["list", "dotted.name", "id", "__offset__"]
    assert found.drop_columns("__offset__").equals(
        table_of(100).slice(31, 59).select(["list", "dotted.name", "id"])
    )
    assert read(url, index(url), ())[0].column_names == ["__offset__"]
    with pytest.raises(
        ConfigError,
        match=r"no column 'nope'; there are 'id', 'x', 'name', 'list', 'dotted\.name'",
    ):
        read(url, index(url), ("id", "nope"))


def test_memory_is_not_underestimated_where_encoding_shrinks_the_file(tmp_path: Path) -> None:
    """A constant column takes a few bytes in the file, and eight per row in memory."""
    path = str(tmp_path / "c.parquet")
    table = pa.table({"a": np.zeros(50_000), "b": np.zeros(50_000, np.int32)})
    pq.write_table(table, path)
    assert size_of(path) < 10_000
    assert index(path).nbytes.tolist() == [50_000 * 12]


def test_a_cut_or_changed_file_is_an_error(url: str) -> None:
    """Holds for a cut at any place, with the old size and the new one in the index."""
    path = Path(url)
    data, blocks, size = path.read_bytes(), index(url), size_of(url)
    for cut in [*range(0, len(data), 101), len(data) - 1]:
        path.write_bytes(data[:cut])
        with pytest.raises(DataError, match="changed since"):
            read(url, blocks, size=size)
        with pytest.raises(DataError, match="damaged Parquet") as caught:
            index(url)
        assert caught.value.shard == url
    pq.write_table(table_of(100), url, row_group_size=25)
    with pytest.raises(DataError, match="held 30 samples then and holds 25 now"):
        read(url, blocks)
    pq.write_table(table_of(100), url)
    with pytest.raises(DataError, match="has 1 row groups"):
        read(
            url,
            index(url)
            .coarser()
            .__class__(blocks.begin[3:], blocks.end[3:], blocks.samples[3:], blocks.nbytes[3:]),
        )


def test_damaged_pages_are_found_by_their_checksum(tmp_path: Path) -> None:
    """A page with a checksum reveals damage."""
    path = tmp_path / "p.parquet"
    pq.write_table(
        pa.table({"x": np.random.default_rng(0).random(1000)}), path, write_page_checksum=True
    )
    blocks, data = index(str(path)), bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged Parquet"):
        read(str(path), blocks)


@pytest.mark.parametrize("name", ["__offset__", "__file__", "__fault__"])
def test_a_column_with_our_name_is_refused(tmp_path: Path, name: str) -> None:
    """Otherwise the column would be overwritten, or left out."""
    path = str(tmp_path / "o.parquet")
    pq.write_table(pa.table({name: [1]}), path)
    with pytest.raises(ConfigError, match=name):
        read(path, index(path))


COLUMNS: dict[str, tuple[pa.Array, Any]] = {
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
    "numbers in a dictionary": (
        pa.array([7, 8, 7], pa.int32()).dictionary_encode(),
        np.array([7, 8, 7], np.int32),
    ),
    "large text": (pa.array(["x", "y", None], pa.large_string()), ["x", "y", None]),
    "large bytes": (pa.array([b"x", b"", None], pa.large_binary()), [b"x", b"", None]),
    "large lists": (
        pa.array([[1, 2], [3], []], pa.large_list(pa.int16())),
        np.array([[1, 2], [3, 0], [0, 0]], np.int16),
    ),
    "half floats": (pa.array(np.arange(3, dtype=np.float16)), np.arange(3, dtype=np.float16)),
    "nested lists": (pa.array([[[1, 2], [3]], [], [[]]]), [[[1, 2], [3]], [], [[]]]),
    "structs": (pa.array([{"a": 1, "b": None}] * 3), [{"a": 1, "b": None}] * 3),
    "maps": (
        pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        [[("k", 1)], [], None],
    ),
    "nothing": (pa.nulls(3), [None] * 3),
    "lists of flags": (pa.array([[True], [False], [True]]), np.array([[True], [False], [True]])),
    "fixed lists": (
        pa.array([[1, 2]] * 3, pa.list_(pa.float32(), 2)),
        np.array([[1, 2]] * 3, np.float32),
    ),
    "tensors": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.int16).reshape(3, 2, 2)),
        np.arange(12, dtype=np.int16).reshape(3, 2, 2),
    ),
    "dates": (pa.array([dt.date(2020, 1, 2)] * 3), [dt.date(2020, 1, 2)] * 3),
    "decimals": (pa.array([Decimal("1.50")] * 3), [Decimal("1.50")] * 3),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("read", [ri.read_parquet, ri.read_arrow])
def test_columns_of_every_type(read: Any, name: str, tmp_path: Path) -> None:
    """Values are right across row groups and record batches, in Parquet and in Arrow files."""
    column, expected = COLUMNS[name]
    path = str(tmp_path / "t")
    table = pa.table({"x": column})
    if read is ri.read_parquet:
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    with read(path, block_bytes=1).batch(3).loader(workers=0) as loader:
        found = next(iter(loader))["x"]
    if isinstance(expected, list):
        assert found == expected
    else:
        assert found.numpy().dtype == expected.dtype
        assert np.array_equal(found, expected)
