"""JSON with types: equal columns with and without simdjson, and equal errors."""

from __future__ import annotations

import gzip
import importlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import rayingest as ri
from rayingest.errors import DataError
from rayingest.formats import json_columns
from rayingest.formats.json_columns import LineReader, check_types, typed_columns

TYPES = {
    "t": "list<int32>",
    "x": "list<float32>",
    "n": "int8",
    "u": "uint64",
    "f": "float64",
    "s": "string",
    "b": "bool",
}
Read = Callable[..., Any]


def wrong(line: int, reason: str) -> DataError:
    return DataError(reason, offset=line)


@pytest.fixture(params=["simdjson", "json"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Read:
    """`typed_columns` to lists; with the library, and as if it were not installed."""
    if request.param == "json":
        imported = importlib.import_module

        def missing(name: str) -> Any:
            if name == "simdjson":
                raise ImportError(name)
            return imported(name)

        monkeypatch.setattr(json_columns.importlib, "import_module", missing)

    def of(lines: list[bytes], types: dict[str, str]) -> dict[str, list[Any]]:
        columns = typed_columns(lines, types, wrong)
        assert [str(column.type).replace("item: ", "") for column in columns.values()] == [
            {"float32": "float", "float64": "double", "list<float32>": "list<float>"}.get(
                text, text
            )
            for text in types.values()
        ]
        return {name: column.to_pylist() for name, column in columns.items()}

    return of


def test_values_are_those_that_json_has_and_null_where_there_are_none(read: Read) -> None:
    """Escaped names, empty lists, other fields and a byte order mark change nothing."""
    lines = [
        b'{"t": [1, -2, 2147483647], "x": [1, 2.5, 1e30], "n": -128, '
        b'"u": 18446744073709551615, "f": 3, '
        b'"s": "\\u00fc", "b": true, "other": {"t": [[9]]}}',
        b'{"t": [], "x": null, "n": null}',
        b'\xef\xbb\xbf{"\\u0074": [7], "f": 1e3, "s": "", "b": false}',
        b"{}",
    ]
    assert read(lines, TYPES) == {
        "t": [[1, -2, 2147483647], [], [7], None],
        "x": [[1.0, 2.5, float(np.float32(1e30))], None, None, None],
        "n": [-128, None, None, None],
        "u": [18446744073709551615, None, None, None],
        "f": [3.0, None, 1000.0, None],
        "s": ["ü", None, "", None],
        "b": [True, None, False, None],
    }
    assert read([], TYPES) == {name: [] for name in TYPES}


@pytest.mark.parametrize(
    ("line", "types", "reason"),
    [
        (b'{"t": [1, 2.0]}', {"t": "list<int32>"}, r"'t': \[1, 2\.0\] is not list<int32>"),
        (b'{"t": [[1], [2]]}', {"t": "list<int32>"}, "is not list<int32>"),
        (b'{"t": [1, true]}', {"t": "list<int32>"}, "is not list<int32>"),
        (b'{"t": [1, null]}', {"t": "list<float32>"}, "is not list<float>"),
        (b'{"t": 5}', {"t": "list<int32>"}, "5 is not list<int32>"),
        (b'{"t": [2147483648]}', {"t": "list<int32>"}, "2147483648 is out of range for int32"),
        (b'{"t": [-1]}', {"t": "list<uint8>"}, r"'t': \[-1\] is out of range for uint8"),
        (b'{"t": [18446744073709551616]}', {"t": "list<int64>"}, "is out of range for int64"),
        (b'{"t": [1e39]}', {"t": "list<float32>"}, r"'t': 1e\+39 is out of range for float"),
        (b'{"f": 65520.0}', {"f": "float16"}, "65520.0 is out of range for halffloat"),
        (b'{"n": 128}', {"n": "int8"}, "128 is out of range for int8"),
        (b'{"n": "1"}', {"n": "int8"}, "'1' is not int8"),
        (b'{"n": 1.0}', {"n": "int8"}, "1.0 is not int8"),
        (b'{"n": true}', {"n": "int8"}, "True is not int8"),
        (b'{"s": 1}', {"s": "string"}, "1 is not string"),
        (b'{"s": "\\ud800"}', {"s": "string"}, "surrogates"),
        (b"[1]", {"n": "int8"}, r"\[1\] is not an object"),
        (b'{"n": 1', {"n": "int8"}, "delimiter"),
        (b'{"n": 1, "other": "\xff"}', {"n": "int8"}, "utf-8"),
    ],
)
def test_a_value_of_another_type_is_an_error_of_its_line(
    read: Read, line: bytes, types: dict[str, str], reason: str
) -> None:
    """Nothing is rounded, flattened or converted; the error names the second line."""
    good = b'{"t": [1], "n": 1, "f": 1.0, "s": "a"}'
    with pytest.raises(DataError, match=reason) as caught:
        read([good, line, good], types)
    assert caught.value.offset == 1


def test_of_two_fields_of_one_name_the_last_counts_as_for_json(read: Read) -> None:
    """Both ways take the last of two equal names, as `json.loads` does."""
    assert read([b'{"t": [1], "t": [2]}'], {"t": "list<int32>"}) == {"t": [[2]]}


def test_simdjson_and_json_agree_on_whatever_there_is() -> None:
    """Random documents, valid or not, give the same columns or two refusals."""
    rng = random.Random(1)
    values = [
        0,
        -1,
        2.0,
        True,
        None,
        "a",
        [],
        [1, 2],
        [1.5],
        [[1]],
        {"t": [1]},
        2**31,
        2**63,
        10**30,
        [2**40],
        [None],
    ]
    fast, exact = LineReader(TYPES), LineReader(TYPES, fast=False)
    assert (fast.is_fast, exact.is_fast) == (True, False)
    accepted = 0
    for _ in range(4000):
        names = rng.sample([*TYPES, "other"], rng.randint(0, 8))
        line = json.dumps({name: rng.choice(values) for name in names}).encode()
        found = []
        for reader in (fast, exact):
            try:
                found.append(
                    [
                        None if value is None else np.asarray(value).tolist()
                        for value in reader(line)
                    ]
                )
            except ValueError:
                found.append("refused")
        assert found[0] == found[1], line
        accepted += found[0] != "refused"
    assert accepted > 100


def test_types_that_there_are_not_are_refused_at_once() -> None:
    """The error names the supported types."""
    for text in ("integer", "list<string>", "list<list<int32>>", "timestamp[s]", "binary"):
        with pytest.raises(
            ri.ConfigError,
            match=r"types: the type .* of field 'a' is not .* such as 'list<int32>'",
        ):
            check_types({"a": text})
    with pytest.raises(ri.ConfigError, match="the type 'long'"):
        ri.read_json("a.jsonl", types={"a": "long"})


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_data_set_with_types_gives_arrays_of_them(tmp_path: Path, suffix: str) -> None:
    """Arrays are padded as lists of Parquet are; fields without a type are left out."""
    docs = [{"t": list(range(i % 7)), "n": i % 100, "other": [[i]]} for i in range(500)]
    path = tmp_path / f"a.jsonl{suffix}"
    text = "\n".join(map(json.dumps, docs)).encode()
    path.write_bytes(gzip.compress(text) if suffix else text)
    data = ri.read_json(path, types={"t": "list<int32>", "n": "int8"}, block_bytes=2000).batch(100)
    with data.loader(workers=0) as loader:
        batches = list(loader)
    assert [key for key in batches[0] if not key.startswith("__")] == ["t", "t_length", "n"]
    tokens = [
        row[:length].tolist()
        for b in batches
        for row, length in zip(b["t"], b["t_length"], strict=True)
    ]
    assert tokens == [doc["t"] for doc in docs]
    assert (batches[0]["t"].dtype, batches[0]["n"].dtype) == (torch.int32, torch.int8)
    with (
        data.select(m="m").loader(workers=0) as loader,
        pytest.raises(ri.ConfigError, match="no column 'm'"),
    ):
        list(loader)


def test_a_wrong_value_in_a_data_set_names_shard_and_offset(tmp_path: Path) -> None:
    """The offset is the byte at which the line begins."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"t": [1]}\n\n{"t": ["a"]}\n')
    data = ri.read_json(path, types={"t": "list<int32>"}).batch(1)
    with (
        data.loader(workers=0) as loader,
        pytest.raises(ri.DataError, match=r"\['a'\] is not list<int32>") as caught,
    ):
        list(loader)
    assert (caught.value.shard, caught.value.offset) == (str(path), 12)


def test_columns_are_arrow_lists_of_the_given_width() -> None:
    """Lists become arrays without a Python object per number."""
    column = typed_columns([b'{"t": [1, 2]}', b'{"t": []}'], {"t": "list<uint16>"}, wrong)["t"]
    assert column.type == pa.list_(pa.uint16())
    assert column.null_count == 0
