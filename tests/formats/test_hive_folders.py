"""Folders named `key=value` are columns of every tabular format."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rayingest as ri


def write(path: Path, form: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as a file of this format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    elif form == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


READERS = {
    "parquet": ri.read_parquet,
    "arrow": ri.read_arrow,
    "csv": lambda urls: ri.read_csv(urls, types={"x": "int64"}),
    "json": ri.read_json,
    "typed.json": lambda urls: ri.read_json(urls, types={"x": "int64"}),
}


def dataset(folder: Path, form: str, folders: list[str], **more: Any) -> ri.Dataset:
    """Return the data of one file in each folder, whose rows have x from 0 on."""
    for i, name in enumerate(folders):
        write(folder / name / f"a.{form}", form, [{"x": i, **more}])
    return READERS[form](folder)


def loaded(data: ri.Dataset) -> list[dict[str, Any]]:
    with data.loader(workers=0, epochs=1) as loader:
        return list(loader)


def column(data: ri.Dataset, name: str, rows: int) -> Any:
    (batch,) = loaded(data.batch(rows))
    return batch[name]


@pytest.mark.parametrize("form", READERS)
def test_a_folder_is_a_column(tmp_path, form):
    """Whole numbers are int32, as pyarrow reads them; other values are text."""
    data = dataset(tmp_path, form, ["year=2025/kind=a", "year=2026/kind=7"])
    (batch,) = loaded(data.batch(2))
    assert batch["year"].tolist() == [2025, 2026]
    assert str(batch["year"].dtype) == "torch.int32"
    assert batch["kind"] == ["a", "7"]
    assert batch["x"].tolist() == [0, 1]


@pytest.mark.parametrize("form", READERS)
def test_select_and_where_know_the_columns(tmp_path, form):
    """Renamed, alone, or not at all; samples are chosen by them."""
    data = dataset(tmp_path, form, [f"year={year}" for year in (2024, 2025, 2026)])
    assert column(data.select(y="year"), "y", 3).tolist() == [2024, 2025, 2026]
    assert column(data.select(x="x", y="year"), "y", 3).tolist() == [2024, 2025, 2026]
    assert sorted(loaded(data.select(x="x").batch(3))[0]) == ["__index__", "x"]
    assert column(data.where("year >= 2025 and x > 0"), "x", 2).tolist() == [1, 2]
    assert column(data.where("year == 2025"), "year", 1).tolist() == [2025]


@pytest.mark.parametrize("pattern", ["", "/**/*.parquet", "/year=*/*.parquet"])
def test_folders_globs_and_remote_storage_give_the_same_columns(tmp_path, pattern):
    """The whole path of a file counts, so a name inside a partition keeps the column."""
    dataset(tmp_path, "parquet", ["year=2025", "year=2026"])
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    for path in tmp_path.rglob("*.parquet"):
        fs.pipe_file(f"/bucket/{path.relative_to(tmp_path)}", path.read_bytes())
    for base in (str(tmp_path), "memory://bucket"):
        found = column(ri.read_parquet(base + pattern), "year", 2)
        assert found.tolist() == [2025, 2026]
        inside = ri.read_parquet(f"{base}/year=2026")
        assert column(inside, "year", 1).tolist() == [2026]


@pytest.mark.parametrize(
    ("names", "expected", "dtype"),
    [
        (["n=1", "n=__HIVE_DEFAULT_PARTITION__", "n=3"], [1, None, 3], None),
        (["n=a", "n=__HIVE_DEFAULT_PARTITION__"], [None, "a"], None),
        (["n=a%20b", "n=c%2Fd", "n=e=f"], ["a b", "c/d", "e=f"], None),
        (["n=01", "n=-2"], [-2, 1], "torch.int32"),
        (["n=1", "n=99999999999"], ["1", "99999999999"], None),
        (["n=1", "n=1.5"], ["1", "1.5"], None),
        (["n=true", "n="], ["", "true"], None),
        (["d=2026-01-01/n=x", "d=2026-01-01/n=y"], ["x", "y"], None),
    ],
)
def test_values_are_typed_and_decoded_as_by_pyarrow(tmp_path, names, expected, dtype):
    """Null for Hive's name of it; text where one value is no whole number of 32 bits."""
    data = dataset(tmp_path, "parquet", names)
    if dtype is not None:
        assert str(column(data, "n", len(names)).dtype) == dtype
    texts = column(data.map(lambda s: {"n": repr(_plain(s["n"]))}), "n", len(names))
    assert sorted(texts) == sorted(map(repr, expected))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def test_a_shard_without_the_folder_has_null(tmp_path):
    """As pyarrow gives it."""
    data = dataset(tmp_path, "parquet", ["k=a", "."])
    assert sorted(column(data, "k", 2), key=str) == [None, "a"]


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "json"])
def test_a_column_of_the_file_comes_first(tmp_path, form):
    """Data that hold the column themselves stay as they were."""
    data = dataset(tmp_path, form, ["year=2025"], year="own")
    assert column(data, "year", 1) == ["own"]
    assert column(data.select(y="year"), "y", 1) == ["own"]


def test_an_unknown_column_names_those_of_the_folders(tmp_path):
    """They are among the columns that exist."""
    data = dataset(tmp_path, "parquet", ["year=2025"])
    with pytest.raises(ri.ConfigError, match=r"no column 'yaer'.*'x', 'year'"):
        loaded(data.select(y="yaer").batch(1))


def test_sources_of_a_mixture_have_their_own_folders(tmp_path):
    """Types are those of each source."""
    one = dataset(tmp_path / "1", "parquet", ["k=a", "k=b"])
    two = dataset(tmp_path / "2", "json", ["k=c", "k=d"])
    mixed = ri.mix({"one": one, "two": two}, until="all").batch(2)
    with mixed.loader(workers=0, epochs=1) as loader:
        assert {value for batch in loader for value in batch["k"]} == {"a", "b", "c", "d"}


def test_images_and_archives_have_no_such_columns(tmp_path):
    """A folder of files is a class, whatever its name."""
    for name in ("k=a", "k=b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.bin").write_bytes(b"1")
    (batch,) = loaded(ri.read_files(tmp_path).batch(2))
    assert batch["class"] == ["k=a", "k=b"]
    assert "k" not in batch
