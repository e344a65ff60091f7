"""Dotted paths name fields inside structs and objects, in `select` and `where`, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rayingest as ri
from rayingest.formats.nested import split_path

ROWS = [
    {"x": i, "meta": {"score": i / 2, "deep": {"tag": f"t{i}"}, "tokens": [*range(i)]}, "a.b": -i}
    for i in range(6)
]


def dataset(folder: Path, form: str, rows: list[dict[str, Any]] = ROWS, **more: Any) -> ri.Dataset:
    path = folder / f"rows.{form}"
    table = pa.Table.from_pylist(rows)
    if form == "parquet":
        pq.write_table(table, path)
        return ri.read_parquet(path)
    if form == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        return ri.read_arrow(path)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ri.read_json(path, **more)


def loaded(data: ri.Dataset, rows: int = 6) -> dict[str, Any]:
    with data.batch(rows).loader(workers=0, epochs=1) as loader:
        (batch,) = loader
        return batch


forms = pytest.mark.parametrize("form", ["parquet", "arrow", "json"])


@forms
def test_select_takes_a_field_of_a_struct(tmp_path, form):
    """At any depth, beside whole columns and the struct itself; lists are padded as ever."""
    data = dataset(tmp_path, form)
    batch = loaded(data.select(s="meta.score", tag="meta.deep.tag", x="x", tokens="meta.tokens"))
    assert batch["s"].tolist() == [i / 2 for i in range(6)]
    assert batch["tag"] == [f"t{i}" for i in range(6)]
    assert batch["x"].tolist() == [*range(6)]
    assert batch["tokens_length"].tolist() == [*range(6)]
    both = loaded(data.select(meta="meta", s="meta.score"))
    assert [one["score"] for one in both["meta"]] == both["s"].tolist()


@forms
def test_a_field_of_the_whole_name_comes_first(tmp_path, form):
    """Such names exist in flat files."""
    assert loaded(dataset(tmp_path, form).select(v="a.b"))["v"].tolist() == [-i for i in range(6)]
    assert loaded(dataset(tmp_path, form).where("a.b < -3"), 2)["x"].tolist() == [4, 5]


@forms
def test_where_and_the_like_know_paths(tmp_path, form):
    """Before and after a rename, a decoder and a map."""
    data = dataset(tmp_path, form)
    assert loaded(data.where("meta.score >= 1.5"), 3)["x"].tolist() == [3, 4, 5]
    assert loaded(data.where("len(meta.tokens) == 2 or meta.deep.tag == 't0'"), 2)[
        "x"
    ].tolist() == [0, 2]
    renamed = data.select(x="x", m="meta").where("m.score > 2")
    assert loaded(renamed, 1)["x"].tolist() == [5]
    mapped = data.map(lambda s: {"x": s["x"], "n": {"twice": 2 * s["x"]}}).where("n.twice == 8")
    assert loaded(mapped, 1)["x"].tolist() == [4]
    decoded = data.decode(meta=lambda m: {"score": -m["score"]}).where("meta.score == -2")
    assert loaded(decoded, 1)["x"].tolist() == [4]
    later = data.select(x="x", m="meta").select(x="x", s="m.score")
    assert loaded(later)["s"].tolist() == [i / 2 for i in range(6)]
    lengths = data.length("meta.tokens").select(x="x", t="meta.tokens")
    with lengths.batch(3, partial="short").loader(workers=0, epochs=1) as loader:
        assert [value for batch in loader for value in batch["x"].tolist()] == [*range(6)]


@forms
def test_a_null_struct_has_null_fields(tmp_path, form):
    """As Arrow has it."""
    rows = [{"x": 0, "meta": {"tag": "a"}}, {"x": 1, "meta": None}]
    assert loaded(dataset(tmp_path, form, rows).select(t="meta.tag"), 2)["t"] == ["a", None]


@forms
@pytest.mark.parametrize("name", ["meta.scroe", "x.score", "meta.score.more", "no.field", "meta."])
def test_a_path_that_leads_nowhere_is_an_error(tmp_path, form, name):
    """It names the field; lists and numbers have no fields."""
    with pytest.raises(ri.IngestError, match=name.rpartition(".")[2] or "meta"):
        loaded(dataset(tmp_path, form).select(v=name))


def test_types_of_json_may_name_paths(tmp_path):
    """A missing value is None, as for other fields."""
    data = dataset(tmp_path, "json", types={"meta.score": "float32", "meta.tokens": "list<int16>"})
    batch = loaded(data.select(s="meta.score", t="meta.tokens"))
    assert str(batch["s"].dtype) == "torch.float32"
    assert batch["t_length"].tolist() == [*range(6)]


def test_paths_below_a_folder_of_partitions(tmp_path):
    """Both kinds of columns at once."""
    (tmp_path / "k=1").mkdir()
    data = dataset(tmp_path / "k=1", "parquet").select(k="k", s="meta.score").where("k == 1")
    assert loaded(data)["k"].tolist() == [1] * 6


def test_the_longest_name_begins_the_path():
    """So names with dots have fields too."""
    assert split_path("a.b.c", ["a", "a.b"]) == ("a.b", ("c",))
    assert split_path("a.b.c", ["a"]) == ("a", ("b", "c"))
    assert split_path("a", ["a"]) is None
    assert split_path("b.c", ["a"]) is None
