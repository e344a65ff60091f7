"""`rayingest pack --to parquet`: types of columns, and that no value is lost."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import rayingest as ri
from rayingest.errors import DataError
from tests.tools.cli.test_pack import pack_here, samples


@pytest.mark.parametrize(
    ("first", "late", "says"),
    [
        (
            '{"a": 1}',
            '{"a": 2.5}',
            "'a' is int64 in the first block.* cannot hold 2.5 .float. exactly.*types=",
        ),
        ('{"a": [1]}', '{"a": [2.5, 0.1]}', r"'a' is list<item: int64>.* cannot hold \[2.5, 0.1\]"),
        ('{"a": {"x": 1}}', '{"a": {"x": 1, "y": 2}}', "'a' is struct<x: int64>"),
        ('{"a": 0.5}', '{"a": 9007199254740993}', "'a' is double .* cannot hold 9007199254740993"),
        ('{"a": 1}', '{"a": "one"}', "'a' is int64 .* cannot hold 'one' .str"),
        ('{"a": 1}', '{"a": [1]}', r"'a' is int64 .* cannot hold \[1\]"),
        ('{"a": null}', '{"a": 1}', "'a' is null .* cannot hold 1 .int"),
        (
            '{"a": 1}',
            '{"a": 1, "new": 2}',
            "'new' .int64. is not a field of the first block.*: 'a'; ",
        ),
    ],
)
def test_no_later_value_is_changed_or_left_out_in_parquet(
    tmp_path: Path, first: str, late: str, says: str
) -> None:
    """A value that the first block's columns cannot hold exactly is an error that names it."""
    (tmp_path / "a.jsonl").write_text(f"{first}\n" * 1_500 + f"{late}\n" * 2)
    with pytest.raises(DataError, match=says) as caught:
        pack_here(
            ri.read_json(tmp_path / "a.jsonl"), tmp_path / "out", to="parquet", shard_bytes=1 << 20
        )
    assert (caught.value.sample, caught.value.shard) == (1_500, str(tmp_path / "a.jsonl"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["packing.json"]


def test_what_columns_hold_exactly_they_take(tmp_path: Path) -> None:
    """Integers among floats, null, empty lists, and missing fields, which are null."""
    lines = ['{"a": 0.5, "b": [0.5], "c": "x"}'] * 1_500 + [
        '{"a": 3, "b": []}',
        '{"a": null, "b": [1], "d": null}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    pack_here(
        ri.read_json(tmp_path / "a.jsonl"), tmp_path / "out", to="parquet", shard_bytes=1 << 20
    )
    assert pq.read_table(next((tmp_path / "out").glob("*.parquet"))).to_pylist()[-2:] == [
        {"a": 3.0, "b": [], "c": None},
        {"a": None, "b": [1.0], "c": None},
    ]


def test_columns_are_those_of_the_first_block_however_shards_cut_it(tmp_path: Path) -> None:
    """Also if only its last sample has a field, or a float."""
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 99 + '{"a": 0.5, "b": "x"}\n')
    packing = pack_here(
        ri.read_json(tmp_path / "a.jsonl"), tmp_path / "out", to="parquet", shard_bytes=200
    )
    assert len(packing.shards) > 3
    found = samples(ri.read_parquet(tmp_path / "out"))
    assert found == [{"a": 1.0, "b": None}] * 99 + [{"a": 0.5, "b": "x"}]


def test_shards_of_narrower_and_wider_columns_are_one_where_values_allow_it(tmp_path: Path) -> None:
    """The first shard's type counts; a sample that does not fit it is named."""
    (tmp_path / "data").mkdir()
    for number, values in enumerate(
        [pa.array([1, 2], pa.int32()), pa.array([3, 4]), pa.array([5, 1 << 40])]
    ):
        half = pa.array([[0.5]] * 2, pa.list_(pa.float64() if number else pa.float32()))
        pq.write_table(
            pa.table({"a": values, "half": half}), tmp_path / "data" / f"{number}.parquet"
        )
    data = ri.read_parquet(tmp_path / "data")
    pack_here(data.take(5), tmp_path / "out", to="parquet", shard_bytes=1 << 20)
    table = pq.read_table(next((tmp_path / "out").glob("*.parquet")))
    assert (table.column("a").type, table.column("half").type) == (
        pa.int32(),
        pa.list_(pa.float32()),
    )
    assert table.to_pylist() == [{"a": number, "half": [0.5]} for number in range(1, 6)]
    with pytest.raises(
        DataError, match=r"'a' is int32 .* cannot hold 1099511627776 .int. exactly"
    ) as caught:
        pack_here(data, tmp_path / "no", to="parquet", shard_bytes=1 << 20)
    assert (caught.value.sample, caught.value.shard) == (5, str(tmp_path / "data" / "2.parquet"))


def test_columns_that_nothing_was_done_to_keep_their_type(tmp_path: Path) -> None:
    """Parquet types survive, also those that Python values do not show."""
    columns = {
        "decimal": pa.array([Decimal("1.25"), Decimal("12.50"), None], pa.decimal128(9, 2)),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int8())),
        "time": pa.array([1, None, 1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")),
        "day": pa.array([datetime(2026, 1, 2, tzinfo=UTC).date()] * 3, pa.date32()),
        "small": pa.array([None, None, 3], pa.int16()),
        "class": pa.array(["x", "y", "x"]).dictionary_encode(),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(
            np.arange(12, dtype=np.float32).reshape(3, 2, 2)
        ),
        "list": pa.array([[1], [], [None]], pa.list_(pa.uint8())),
        "bytes": pa.array([b"a", b"", None], pa.large_binary()),
        "empty": pa.nulls(3),
    }
    (tmp_path / "data").mkdir()
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "data" / "a.parquet", row_group_size=2)
    data = ri.read_parquet(tmp_path / "data")
    for taken, begin in ((data, 0), (data.skip(1), 1)):
        pack_here(taken, tmp_path / f"out-{begin}", to="parquet", shard_bytes=1 << 20)
        (shard,) = (tmp_path / f"out-{begin}").glob("*.parquet")
        assert pq.read_table(shard).equals(
            pq.read_table(tmp_path / "data" / "a.parquet").slice(begin)
        )


def test_images_in_parquet_are_decoded_under_their_own_name(tmp_path: Path) -> None:
    """The column has an encoding; its name gets no extension."""
    (tmp_path / "data").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "data" / "a.png")
    data = ri.read_images(tmp_path / "data")
    for name, how, shape in (("whole", {}, (30, 40, 3)), ("small", {"resize": 10}, (10, 13, 3))):
        for decode in (False, True):
            out = tmp_path / f"{name}-{decode}"
            pack_here(data, out, to="parquet", shard_bytes=1 << 20, decode=decode, **how)
            (sample,) = samples(ri.read_parquet(out))
            assert sample["image"].shape == shape
            assert "image" in pq.read_schema(next(out.glob("*.parquet"))).names
