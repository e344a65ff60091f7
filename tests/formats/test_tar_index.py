"""Indexes beside tars give the blocks of a full pass, and a wrong index is noticed."""

from __future__ import annotations

import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.formats import get_format, webdataset
from rayingest.formats.protocol import Shard
from rayingest.storage.files import Storage
from tests.support.format_cases import tar
from tests.support.format_samples import PARTS, SAMPLES

FORMAT = get_format("webdataset")


def members(path: Path) -> list[list[tarfile.TarInfo]]:
    """Yield the members of each sample."""
    with tarfile.open(path) as archive:
        found = archive.getmembers()
    return [found[i : i + 2] for i in range(0, len(found), 2)]


def energon(path: Path) -> None:
    """Return the offsets of samples' first headers, and of the end marker."""
    samples = members(path)
    last = samples[-1][-1]
    places = [sample[0].offset for sample in samples] + [last.offset_data + 512]
    path.with_name(path.name + ".idx").write_bytes(struct.pack(f"{len(places)}Q", *places))


def dali(path: Path) -> None:
    """Return extension, data offset, size and name of each file."""
    lines = [
        " ".join(f"{m.name[4:]} {m.offset_data} {m.size} {m.name}" for m in sample)
        for sample in members(path)
    ]
    path.with_suffix(".idx").write_text("\n".join([f"v1.2 {len(lines)}", *lines, ""]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.tar"
    path.write_bytes(tar(PARTS[0]))
    return path


def index(path: Path) -> Any:
    return FORMAT.index(Shard(Storage(), str(path), path.stat().st_size), 3000)


@pytest.mark.parametrize("make", [energon, dali])
def test_an_index_gives_the_blocks_without_a_look_through(
    path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last sample and the end of the tar are read."""
    scanned = index(path)
    make(path)
    looks = []
    next_member = webdataset.next_member
    monkeypatch.setattr(
        webdataset, "next_member", lambda *args: looks.append(args) or next_member(*args)
    )
    found = index(path)
    assert len(looks) == 3
    names = (
        ("begin", "end", "samples") if make is energon else ("begin", "end", "samples", "nbytes")
    )
    assert [getattr(found, name).tolist() for name in names] == [
        getattr(scanned, name).tolist() for name in names
    ]


@pytest.mark.parametrize("make", [energon, dali])
def test_an_old_index_is_completed_or_not_used(
    path: Path, make: Callable[[Path], None], caplog: Any
) -> None:
    """Samples added later are found; an index of another tar is logged and ignored."""
    make(path)
    path.write_bytes(tar([*PARTS[0], *PARTS[1]]))
    assert index(path).samples.sum() == len(PARTS[0]) + 1
    assert not caplog.records
    path.write_bytes(tar(PARTS[0][:3]))
    assert index(path).samples.sum() == 3
    assert "is ignored" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda places: places[5:],
        lambda places: [place + 512 for place in places[:-1]] + places[-1:],
        lambda places: [place + 1024 for place in places[:-1]] + places[-1:],
        lambda places: [*places[:-2:2], places[-1]],
    ],
    ids=["lacks the first", "shifted", "shifted by a member", "every second"],
)
def test_an_index_of_which_the_ends_are_wrong_is_not_used(
    path: Path, change: Any, caplog: Any
) -> None:
    """The warning names it; the index then built is that of the tar itself."""
    scanned = index(path)
    energon(path)
    index_path = path.with_name("s.tar.idx")
    data = index_path.read_bytes()
    places = change(list(struct.unpack(f"{len(data) // 8}Q", data)))
    index_path.write_bytes(struct.pack(f"{len(places)}Q", *places))
    assert [column.tolist() for column in vars(index(path)).values()] == [
        column.tolist() for column in vars(scanned).values()
    ]
    assert "s.tar.idx is ignored" in caplog.text


def test_what_is_no_sample_may_be_before_the_first(path: Path, caplog: Any) -> None:
    """A folder may precede the first sample."""
    with tarfile.open(path, "w") as archive:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name in ("d/a.txt", "d/a.cls", "d/b.txt", "d/b.cls"):
            archive.addfile(tarfile.TarInfo(name))
    begin = [member.offset for sample in members(path) for member in sample if member.isfile()]
    path.with_name("s.tar.idx").write_bytes(struct.pack("3Q", begin[0], begin[2], begin[3] + 512))
    assert (index(path).begin.tolist(), index(path).samples.tolist()) == ([512], [2])
    assert not caplog.records


def test_an_index_of_other_samples_is_seen_when_they_are_read(path: Path) -> None:
    """The result is an error, never other data or less data."""
    energon(path)
    index_path = path.with_name("s.tar.idx")
    places = struct.unpack("18Q", index_path.read_bytes())
    index_path.write_bytes(struct.pack("17Q", *places[:4], *places[5:]))
    with (
        ri.read_webdataset(path).batch(1).loader(workers=0) as loader,
        pytest.raises(ri.DataError, match=r"samples then.*or the index .*s\.tar\.idx"),
    ):
        list(loader)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1.2 3\n",
        "v9 0\n",
        "v1.2 1\ntxt x 5 n\n",
        "v1.2 1\ntxt 7 5 a b\n",
        "v1.2 1\ntxt 7 5 a\n",
    ],
)
def test_what_is_no_index_is_not_used(path: Path, text: str, caplog: Any) -> None:
    """Another file of that name, a damaged index and names with spaces are ignored."""
    path.with_suffix(".idx").write_text(text)
    assert index(path).samples.sum() == len(PARTS[0])
    assert "is ignored" in caplog.text


def test_a_list_of_shards_in_the_manner_of_wids(tmp_path: Path) -> None:
    """Its names are files beside it, or whole URLs."""
    for number, part in enumerate(PARTS):
        (tmp_path / f"s-{number}.tar").write_bytes(tar(part))
    shards = [
        {"url": url, "nsamples": 1}
        for url in ("s-0.tar", str(tmp_path / "s-1.tar"), f"file://{tmp_path}/s-2.tar")
    ]
    listed = tmp_path / "shards.json"
    listed.write_text(json.dumps({"__kind__": "wids-shard-index-v1", "shardlist": shards}))
    with ri.read_webdataset(listed).batch(40).loader(workers=0) as loader:
        assert next(iter(loader))["txt"] == [text for _, text in SAMPLES]
    listed.write_text("{}")
    with pytest.raises(ri.ConfigError, match="not a list of shards"):
        ri.read_webdataset(listed).batch(40).loader(workers=0)
