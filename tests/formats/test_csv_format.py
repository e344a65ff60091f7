"""CSV: begins and ends of lines, names, types."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset
from rayingest.formats import csv


def rows(data: Dataset) -> list[tuple[Any, ...]]:
    with data.batch(1).loader(workers=0) as loader:
        found = [
            {name: value[0] for name, value in batch.items() if name != "__index__"}
            for batch in loader
        ]
    return [
        tuple(value.item() if hasattr(value, "item") else value for value in row.values())
        for row in found
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.csv"


@pytest.mark.parametrize("chunk", [1, 7, 4 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_samples_wherever_their_ends_stand(
    path: Path, chunk: int, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line ends between quotes are part of a value; blank lines do not count."""
    monkeypatch.setattr(csv, "_CHUNK", chunk)
    text = end.join(["a,b", "1,x", "", '2,"y\nz"', '3,"say ""hi"", or not"', ",", '"4",ü'])
    expected = [("1", "x"), ("2", "y\nz"), ("3", 'say "hi", or not'), ("", ""), ("4", "ü")]
    for ending in ("", end):
        path.write_bytes((text + ending).encode())
        assert rows(ri.read_csv(path, block_bytes=1)) == expected
        assert rows(ri.read_csv(path).select(b="b")) == [(b,) for _, b in expected]


@pytest.mark.parametrize("chunk", [1, 7, 4 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("delimiter", "lines", "expected"),
    [
        ("\t", ["a\tb", "1\t2", "\t", "", "3\t4"], [("1", "2"), ("", ""), ("3", "4")]),
        (" ", ["a b", "1 2", " ", "", "3 4"], [("1", "2"), ("", ""), ("3", "4")]),
        (",", ["a", "1", " ", "", "\t", "2"], [("1",), (" ",), ("\t",), ("2",)]),
    ],
)
def test_a_line_of_white_space_is_a_sample(
    path: Path,
    chunk: int,
    end: str,
    delimiter: str,
    lines: Any,
    expected: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line of spaces or empty values is a sample; an empty line is not."""
    monkeypatch.setattr(csv, "_CHUNK", chunk)
    path.write_bytes(end.join([*lines, ""]).encode())
    assert rows(ri.read_csv(path, delimiter=delimiter, block_bytes=1)) == expected


@pytest.mark.parametrize("zipped", [False, True])
def test_carriage_returns_alone_end_no_lines(tmp_path: Path, zipped: bool) -> None:
    """They are an error: otherwise the whole file would be the line of names."""
    path = tmp_path / ("s.csv.gz" if zipped else "s.csv")
    path.write_bytes(gzip.compress(b"a,b\r1,2\r") if zipped else b"a,b\r1,2\r")
    with pytest.raises(ri.DataError, match="carriage returns alone"):
        rows(ri.read_csv(path))
    path.write_bytes(gzip.compress(b'"a\rb",c\r\n') if zipped else b'"a\rb",c\r\n')
    with pytest.raises(ri.ConfigError, match="no sample"):
        rows(ri.read_csv(path))


@pytest.mark.parametrize("chunk", [1, 7, 4 << 20])
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("at", [1, 10, 30])
def test_zero_bytes_are_damage(
    tmp_path: Path, chunk: int, zipped: bool, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure leaves zero bytes; without an error, lines would be missing unnoticed."""
    monkeypatch.setattr(csv, "_CHUNK", chunk)
    path = tmp_path / ("s.csv.gz" if zipped else "s.csv")
    data = b"one,two\n" + b"".join(b"%d,%d\n" % (i, i) for i in range(9))
    data = data[:at] + bytes(9) + data[at + 9 :]
    path.write_bytes(gzip.compress(data) if zipped else data)
    with pytest.raises(ri.DataError, match="damaged CSV: it holds a zero byte") as caught:
        rows(ri.read_csv(path))
    assert caught.value.offset == at


@pytest.mark.parametrize("at", [1, 30])
def test_zero_bytes_since_it_was_indexed_are_damage(path: Path, at: int) -> None:
    """Zero bytes are an error even if they replace no line end."""
    data = b"one,two\n" + b"".join(b"%d,%d\n" % (i, i) for i in range(9))
    path.write_bytes(data)
    with ri.read_csv(path).batch(1).loader(workers=0):
        before = path.stat()
    path.write_bytes(data[:at] + b"\0" + data[at + 1 :])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ri.DataError, match="damaged CSV: it holds a zero byte") as caught:
        rows(ri.read_csv(path))
    assert caught.value.offset == at


@pytest.mark.parametrize("chunk", [1, 2, 3, 4 << 20])
def test_a_quote_inside_a_field_is_text(
    path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quote in a field that does not begin with one hides no line end."""
    monkeypatch.setattr(csv, "_CHUNK", chunk)
    lines = {
        '5" pipe,1': ('5" pipe', "1"),
        'two "" in,"a\n""b"" c"': ('two "" in', 'a\n"b" c'),
        '"closed"then"more,""': ('closedthen"more', ""),
        'x"y"z,""""': ('x"y"z', '"'),
        '"",\'"\'': ("", "'\"'"),
    }
    path.write_text("\ufeff" + '"a,",b\n' + "\n".join(lines) + "\n")
    assert rows(ri.read_csv(path, block_bytes=1)) == list(lines.values())


def test_types_names_and_delimiters_are_what_is_said(path: Path) -> None:
    """Columns without a type are text; a value of another type is an error; empty is None."""
    path.write_text("1;0.5\n2;1.5\n")
    data = ri.read_csv(path, names=["n", "x"], delimiter=";", types={"n": "int64", "x": "float32"})
    assert rows(data) == [(1, 0.5), (2, 1.5)]
    tabs = path.with_suffix(".tsv")
    tabs.write_text("a\tb\n1,5\t2\n")
    assert rows(ri.read_csv(tabs)) == [("1,5", "2")]
    path.write_text("1;\n")
    with (
        ri.read_csv(path, names=["n", "x"], delimiter=";", types={"x": "int64"})
        .batch(1)
        .loader(workers=0) as loader
    ):
        assert next(iter(loader))["x"] == [None]
    path.write_text("n\n1\nx\n")
    with pytest.raises(ri.DataError, match=r"not of its column's type.*x"):
        rows(ri.read_csv(path, types={"n": "int64"}))
    with pytest.raises(ri.ConfigError, match="no column 'm'"):
        rows(ri.read_csv(path, types={"m": "int64"}))
    with pytest.raises(ri.ConfigError, match=r"types: .*such as 'int64'"):
        rows(ri.read_csv(path, types={"n": "integer"}))


def test_what_cannot_be_csv_is_named(path: Path) -> None:
    """Lines of other lengths, a duplicate name, an open quote and bad UTF-8 are errors."""
    cases = {
        b"a,b\n1\n": "damaged CSV",
        b"a,b\n1,2,3\n": "damaged CSV",
        b'a,b\n1,"2\n': r"ends between two quotes, in the line that begins here.*offset 4",
        b"a,b\n1,2\r3,4\n": "lone carriage returns",
        b"a\n\xff\n": "damaged CSV",
        b"\xff\n1\n": "not a list of column names",
    }
    for data, said in cases.items():
        path.write_bytes(data)
        with pytest.raises(ri.DataError, match=said) as caught:
            rows(ri.read_csv(path))
        assert (caught.value.shard, caught.value.offset is not None) == (str(path), True)
    path.write_bytes(b"a,a\n1,2\n")
    with pytest.raises(ri.ConfigError, match="names a column twice"):
        rows(ri.read_csv(path))
    path.write_bytes(b"a,b\n")
    with pytest.raises(ri.ConfigError, match="no sample in any"):
        rows(ri.read_csv(path))


def test_long_first_lines_and_byte_order_marks(path: Path) -> None:
    """Names may exceed the first read; a byte order mark is not part of a name."""
    names = [f"column_{i}_{'x' * 1000}" for i in range(240)]
    path.write_text("\ufeff" + ",".join(names) + "\n" + ",".join(map(str, range(240))) + "\n")
    assert rows(ri.read_csv(path).select(first=names[0], last=names[-1])) == [("0", "239")]
