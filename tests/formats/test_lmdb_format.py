"""LMDB: entries by number, for any blocks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset


def batch(data: Dataset, size: int) -> dict[str, Any]:
    with data.batch(size).loader(workers=0) as loader:
        found: dict[str, Any] = next(iter(loader))
        return found


def write(folder: Path, entries: dict[bytes, bytes], **options: Any) -> None:
    with (
        lmdb.open(str(folder), map_size=8 << 20, **options) as database,
        database.begin(write=True) as transaction,
    ):
        for key, value in entries.items():
            transaction.put(key, value)


def test_entries_are_samples_in_the_order_of_their_keys(tmp_path: Path) -> None:
    """Holds across blocks and lookups, for a folder and for a single file."""
    entries = {b"k%04d" % i: bytes([i % 256]) * (i % 50) for i in range(1500)}
    write(tmp_path / "db", dict(reversed(entries.items())) | {b"__len__": b"1500", b"zz": b"none"})
    for urls in (tmp_path / "db", tmp_path / "db" / "data.mdb"):
        data = ri.read_lmdb(urls, block_bytes=1000, skip=["__len__", "zz"])
        found = batch(data, 1500)
        assert dict(zip(found["key"], found["value"], strict=True)) == entries
        assert found["key"] == sorted(entries)
        mixed = batch(data.select(key="key").shuffle(seed=1), 1500)
        assert sorted(mixed["key"]) == sorted(entries) != mixed["key"]
    assert batch(ri.read_lmdb(tmp_path), 1501)["key"][-1] == b"zz"


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    """Other files, remote databases and a database without entries are errors."""
    path = tmp_path / "x.lmdb"
    path.write_bytes(b"no database".ljust(8192))
    with pytest.raises(ri.DataError, match="damaged LMDB database, or not LMDB") as caught:
        batch(ri.read_lmdb(path), 1)
    assert caught.value.shard == str(path)
    path.unlink()
    write(path, {}, subdir=False)
    with pytest.raises(ri.ConfigError, match="no sample in any"):
        batch(ri.read_lmdb(path), 1)
    import fsspec

    fsspec.filesystem("memory").pipe_file("/x.lmdb", b"x")
    with pytest.raises(ri.ConfigError, match="is not local"):
        batch(ri.read_lmdb("memory://x.lmdb"), 1)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a missing lmdb names the extra to install."""
    write(tmp_path / "x.lmdb", {b"a": b"b"}, subdir=False)
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(
        ri.ConfigError, match=r"reading LMDB needs 'lmdb': pip install 'rayingest\[lmdb\]'"
    ):
        batch(ri.read_lmdb(tmp_path), 1)
