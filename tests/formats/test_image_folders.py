"""Folders of files: classes, groups, and an index that opens no file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from PIL import Image

import rayingest as ri
from rayingest.errors import DataError
from rayingest.formats import files
from rayingest.formats.file_groups import group_files, parse_group
from rayingest.formats.protocol import Shard
from rayingest.storage.file_info import FileInfo
from rayingest.storage.files import Storage
from rayingest.transforms.raw_block import RawBlock


def write(folder: Path, names: list[str]) -> list[np.ndarray]:
    images = [np.full((5, 4, 3), 7 * i, np.uint8) for i in range(len(names))]
    for name, image in zip(names, images, strict=True):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(image).save(folder / name)
    return images


def test_a_folder_is_a_class(tmp_path: Path) -> None:
    """Classes are numbered by name, samples are ordered by path, other files are ignored."""
    names = ["cat/1.png", "cat/2.BMP", "dog/1.png", "emu/sub/ape/0.png"]
    images = write(tmp_path / "x", names)
    (tmp_path / "x" / "cat" / "list.txt").write_text("no image")
    with ri.read_images(tmp_path / "x").batch(4).loader(workers=0) as loader:
        batch = next(iter(loader))
    assert np.array_equal(batch["image"], images)
    assert batch["class"] == ["cat", "cat", "dog", "ape"]
    assert batch["label"].tolist() == [1, 1, 2, 0]
    assert batch["path"] == names
    assert batch["size"].tolist() == [(tmp_path / "x" / name).stat().st_size for name in names]


def test_what_is_not_wanted_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is opened for labels."""
    write(tmp_path, ["a/1.png", "b/1.png"])
    monkeypatch.setattr(files, "_contents", None)
    with ri.read_images(tmp_path).select(y="label").batch(2).loader(workers=0) as loader:
        assert next(iter(loader))["y"].tolist() == [0, 1]


def test_what_is_no_plain_file_is_left_out(tmp_path: Path) -> None:
    """A FIFO is ignored; a file name that is not UTF-8 is an error that shows it."""
    (tmp_path / "a.bin").write_bytes(b"a")
    os.mkfifo(tmp_path / "b.bin")
    with ri.read_files(tmp_path).batch(1).loader(workers=0) as loader:
        assert len(loader) == 1
    (tmp_path / os.fsdecode(b"\xff.bin")).write_bytes(b"b")
    with pytest.raises(ri.ConfigError, match=r"xff.bin' is not UTF-8"):
        ri.read_files(tmp_path).batch(1).loader(workers=0)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The error for a changed, missing or invalid file names that file."""
    write(tmp_path, ["a/1.png", "a/2.png", "b/1.png"])
    second = tmp_path / "a" / "2.png"
    whole = second.read_bytes()
    cases = {
        whole[:-9]: "changed since it was indexed",
        b"no image".ljust(len(whole)): "decode of 'image'",
    }
    for data, said in cases.items():
        with ri.read_images(tmp_path).batch(3).loader(workers=0) as loader:
            second.write_bytes(data)
            with pytest.raises(ri.DataError, match=said) as caught:
                next(iter(loader))
        assert (caught.value.shard, caught.value.offset, caught.value.sample) == (str(second), 0, 1)
        second.write_bytes(whole)
    with ri.read_images(tmp_path).batch(3).loader(workers=0) as loader:
        second.unlink()
        with pytest.raises(ri.DataError, match="does not exist") as caught:
            next(iter(loader))
    assert (caught.value.shard, caught.value.offset, caught.value.sample) == (str(second), 0, 1)


class _Failing(Storage):
    """Of some files, by their names, reading fails in its own way."""

    failures: ClassVar[dict[str, DataError]] = {}

    def read_all(self, url: str) -> bytes:
        failure = self.failures.get(url.rpartition("/")[2])
        if failure is not None:
            raise failure
        return super().read_all(url)


@pytest.mark.parametrize("on", ["disk", "other storage"])
def test_one_file_is_at_fault_for_itself_alone(
    tmp_path: Path, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other files of a block are read; a transient storage failure fails the whole read."""
    names = ["a/1.bin", "a/2.bin", "b/1.bin", "b/3.bin"]
    root = f"{tmp_path}/" if on == "disk" else f"memory://{tmp_path.name}/"
    for i, name in enumerate(names):
        with fsspec.open(root + name, "wb", auto_mkdir=True) as file:
            file.write(bytes([i]) * 7)
    storage = _Failing()
    listing = files.FORMAT.shards(root, storage, 1 << 20, {})
    shard = Shard(storage, listing.url(0), listing.sizes[0])
    with fsspec.open(root + "a/2.bin", "wb") as file:
        file.write(b"short")
    fsspec.filesystem("file" if on == "disk" else "memory").rm(root + "b/1.bin")
    (table,) = files.FORMAT.read(shard, [(0, 28, 4)], ("path", "data"))
    assert table.column_names[:2] == ["path", "data"]
    assert table.column("data").to_pylist() == [b"\0" * 7, None, None, b"\3" * 7]
    rows = RawBlock(table)
    changed, absent = (
        "the file changed since it was indexed: it had 7 bytes then, 5 now",
        "it does not exist",
    )
    assert rows.names == ("path", "data")
    assert (list(rows.faults), rows.faults[1]) == ([1, 2], changed)
    assert absent in rows.faults[2]
    monkeypatch.setitem(_Failing.failures, "3.bin", DataError("no answer", transient=True))
    with pytest.raises(DataError, match="no answer"):
        files.FORMAT.read(shard, [(0, 28, 4)], None)
    (table,) = files.FORMAT.read(shard, [(0, 28, 4)], ("label",))
    assert not RawBlock(table).faults


def test_fifty_thousand_files_are_indexed_without_opening_one(tmp_path: Path) -> None:
    """Each folder is listed once; the index has all labels and sizes, in order."""
    one = tmp_path / "one"
    one.touch()
    (tmp_path / "data").mkdir()
    for number in range(100):
        folder = tmp_path / "data" / f"{number:04d}"
        folder.mkdir()
        for i in range(500):
            os.link(one, f"{folder}/{500 * number + i:06d}.jpg")  # a tenth of what a new file takes
    opened: list[str] = []
    listed: list[str] = []

    def heard(event: str, args: tuple[Any, ...]) -> None:
        watched = {"open": opened, "os.scandir": listed, "os.listdir": listed}.get(event)
        if watched is not None and str(args[0]).startswith(str(tmp_path / "data")):
            watched.append(str(args[0]))

    data = ri.read_images(tmp_path / "data", index=tmp_path / "index.arrow").select(
        y="label", path="path"
    )
    with hearing(heard), data.batch(50_000).loader(workers=0) as loader:
        batch = next(iter(loader))
    assert opened == []
    assert sorted(listed) == [
        str(tmp_path / "data"),
        *(str(tmp_path / "data" / f"{n:04d}") for n in range(100)),
    ]
    assert batch["y"].tolist() == [i // 500 for i in range(50_000)]
    assert batch["path"][-1] == "0099/049999.jpg"


@contextmanager
def hearing(heard: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Record the interpreter's audit events inside; the hook stays installed, but inactive."""
    ears = [heard]
    sys.addaudithook(lambda event, args: ears[0](event, args) if ears else None)
    try:
        yield
    finally:
        ears.clear()


def test_groups_hold_their_files_and_nothing_of_credentials() -> None:
    """A group has about the requested bytes and at most 1,024 files, of any names."""
    names = ["a|b:c.png", "q?x=1.png", "ü %20.png", "zero\n.png"]
    found = [FileInfo(f"/d/{name}", 10 * i, str(i)) for i, name in enumerate(names)]
    listing = group_files(found, 30)
    assert listing.sizes == (30, 30)
    groups = [parse_group(listing.url(i)) for i in range(2)]
    assert [root + file.path for root, files in groups for file in files] == [
        shard.url for shard in found
    ]
    assert [file.size for _, files in groups for file in files] == [0, 10, 20, 30]
    many = [FileInfo(f"/d/{i}", 0, "") for i in range(3000)]
    assert [len(parse_group(group_files(many, 1).url(i))[1]) for i in range(3)] == [1024, 1024, 952]
    with pytest.raises(ri.ConfigError, match="has a query"):
        group_files([FileInfo("https://h/a.png?signature=abc", 1, "")], 1)
