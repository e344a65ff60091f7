"""WebDataset tars: which members are samples, and no sample lost unnoticed."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayingest.errors import ConfigError, DataError
from rayingest.formats import get_format, protocol
from rayingest.formats.webdataset import field_of
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage

FORMAT = get_format("webdataset")
Members = Sequence[tuple[str, bytes]]


def tar_bytes(members: Members, fmt: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=fmt) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return target.getvalue()


def random_members(samples: int, seed: int = 0) -> list[tuple[str, bytes]]:
    rng = np.random.default_rng(seed)
    members = []
    for i in range(samples):
        members.append((f"d/{i:05d}.txt", str(i).encode()))
        if i % 3:
            members.append((f"d/{i:05d}.seg.bin", rng.bytes(int(rng.integers(0, 3000)))))
    return members


class Shard:
    """One file, indexed and read as a loader would."""

    def __init__(
        self, path: Path, data: bytes, block_bytes: int = 1 << 21, strict: bool = True
    ) -> None:
        path.write_bytes(data)
        self.url, self.block_bytes = str(path), block_bytes
        self.shard = protocol.Shard(Storage(), self.url, len(data), strict)

    def index(self) -> ShardBlocks:
        return FORMAT.index(self.shard, self.block_bytes)

    def read(self, blocks: ShardBlocks, columns: tuple[str, ...] | None = None) -> list[pa.Table]:
        triples = list(
            zip(blocks.begin.tolist(), blocks.end.tolist(), blocks.samples.tolist(), strict=True)
        )
        return FORMAT.read(self.shard, triples, columns)

    def whole(self, columns: tuple[str, ...] | None = None) -> pa.Table:
        tables = self.read(self.index(), columns)
        return pa.concat_tables(tables, promote_options="default")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.tar"


def expected_rows(members: Members) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, data in members:
        key, extension = field_of(name) or ("", "")
        if not rows or rows[-1]["__key__"] != key:
            rows.append({"__key__": key})
        rows[-1][extension] = data
    return rows


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if v is not None and k != "__offset__"}
        for row in table.to_pylist()
    ]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("dir.v1/a.seg.jpg", ("dir.v1/a", "seg.jpg")),
        ("./a.jpg", ("./a", "jpg")),
        ("1.5_x.jpg", ("1", "5_x.jpg")),
        ("a.JPG", ("a", "jpg")),
        ("a/b/c.Seg.PNG", ("a/b/c", "seg.png")),
        ("noextension", None),
        ("dir.v1/noextension", None),
        (".hidden", None),
        ("d/.hidden.jpg", None),
        ("a.", None),
        ("__meta__", None),
        ("__meta__/a.jpg", None),
        ("__key__.jpg", ("__key__", "jpg")),
        ("d/__x__/a.jpg", ("d/__x__/a", "jpg")),
    ],
)
def test_key_and_extension_of_names(name: str, parts: tuple[str, str] | None) -> None:
    """The first dot of the base name separates them; other names belong to no sample."""
    assert field_of(name) == parts


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".TGZ"])
def test_what_tarfile_writes_is_read_back(tmp_path: Path, fmt: int, suffix: str) -> None:
    """Holds for all header formats; missing fields are null, columns are sorted by name."""
    members = random_members(50)
    data = tar_bytes(members, fmt)
    compressed = suffix != ".tar"
    shard = Shard(
        tmp_path / f"s{suffix}", gzip.compress(data) if compressed else data, block_bytes=4096
    )
    blocks, table = shard.index(), shard.whole()
    assert rows_of(table) == expected_rows(members)
    assert table.column_names == ["__key__", "seg.bin", "txt", "__offset__"]
    assert table.schema.metadata == {b"shard": shard.url.encode()}
    assert table["__offset__"].type == pa.int64()
    assert len(blocks) == 1 if compressed else len(blocks) > 5
    assert blocks.nbytes.sum() == sum(len(content) for _, content in members)
    for offset, key in zip(
        table["__offset__"].to_pylist(), table["__key__"].to_pylist(), strict=True
    ):
        assert data[offset:].startswith(key.encode())


def test_long_names_of_gnu_and_pax(path: Path) -> None:
    """Names over 100 and 255 bytes, or not ASCII; offsets are those of extension headers."""
    names = ["x/" * 60 + "a", "y" * 300, "ü" * 80, "short"]
    members = [(f"{name}.{ext}", name.encode()) for name in names for ext in ("a", "b")]
    for fmt in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        shard = Shard(path, tar_bytes(members, fmt), block_bytes=1)
        assert rows_of(shard.whole()) == expected_rows(members)
        assert shard.whole()["__offset__"][0].as_py() == 0
        assert len(shard.index()) == len(names)


def test_only_regular_files_with_key_and_extension_are_fields(path: Path) -> None:
    """Folders, links and metadata between the members of a sample do not split it."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:

        def add(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"") -> None:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), "a.txt"
            tar.addfile(info, io.BytesIO(data))

        add("d.x", tarfile.DIRTYPE)
        add("__meta__/a.txt", data=b"no")
        add("a.txt", data=b"one")
        add("a.lnk", tarfile.SYMTYPE)
        add("README", data=b"no")
        add("a.hard", tarfile.LNKTYPE)
        add("a.bin", data=b"two")
        add("a.pipe", tarfile.FIFOTYPE)
        add("b.txt", data=b"three")
        add(".hidden", data=b"no")
    table = Shard(path, target.getvalue(), block_bytes=1).whole()
    assert rows_of(table) == [
        {"__key__": "a", "bin": b"two", "txt": b"one"},
        {"__key__": "b", "txt": b"three"},
    ]


def test_a_block_at_a_time_or_joined_is_the_whole(path: Path) -> None:
    """Any range between block borders reads as its blocks."""
    shard = Shard(path, tar_bytes(random_members(60)), block_bytes=3000)
    blocks = shard.index()
    whole = shard.whole().to_pylist()
    assert (blocks.begin[1:] == blocks.end[:-1]).all()
    while len(blocks) > 1:
        blocks = blocks.coarser()
        assert pa.concat_tables(shard.read(blocks), promote_options="default").to_pylist() == whole
    assert len(whole) == 60


def test_blocks_hold_at_most_1024_samples(path: Path) -> None:
    """Holds for samples of any size."""
    members = [(f"{i}.t", b"") for i in range(2500)]
    assert Shard(path, tar_bytes(members), block_bytes=1 << 30).index().samples.tolist() == [
        1024,
        1024,
        452,
    ]


def test_projection_copies_only_wanted_extensions(path: Path) -> None:
    """An unknown extension is a column of nulls; upper case is an error."""
    shard = Shard(path, tar_bytes(random_members(10)))
    table = shard.whole(("txt", "nope"))
    assert table.column_names == ["__key__", "nope", "txt", "__offset__"]
    assert table["nope"].null_count == 10
    assert table["nope"].type == pa.binary()
    assert table["txt"].to_pylist() == [str(i).encode() for i in range(10)]
    assert shard.whole(()).column_names == ["__key__", "__offset__"]
    with pytest.raises(ConfigError, match="give 'txt'"):
        shard.whole(("TXT",))


def test_same_key_apart_is_another_sample_and_groups_end_with_the_shard(path: Path) -> None:
    """Only neighbouring members form a sample."""
    table = Shard(path, tar_bytes([("a.x", b"1"), ("b.x", b"2"), ("a.x", b"3")])).whole()
    assert table["__key__"].to_pylist() == ["a", "b", "a"]


@pytest.mark.parametrize("members", [[("a.jpg", b""), ("a.JPG", b"")], [("a.__index__", b"")]])
def test_repeated_and_reserved_extensions_are_errors(path: Path, members: Members) -> None:
    """A field has one value, and no reserved name."""
    with pytest.raises(DataError, match=r"two files with extension|reserved") as caught:
        Shard(path, tar_bytes(members)).index()
    assert caught.value.key == "a"
    assert caught.value.offset is not None


@pytest.mark.parametrize("strict", [True, False])
def test_a_tar_cut_anywhere_is_never_taken_for_whole(path: Path, strict: bool) -> None:
    """A cut is an error, unless only zeros after the end marker are missing.

    Without `strict`, the marker may be missing if all members are whole.
    """
    members = random_members(12)
    data = tar_bytes(members, tarfile.GNU_FORMAT)
    last = len(data.rstrip(b"\0"))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        offsets = [info.offset for info in tar]
        end = tar.offset
    cuts = sorted(
        {
            *range(0, len(data), 512),
            *range(1, len(data), 379),
            end - 1,
            end + 1,
            end + 513,
            end + 1023,
            last,
        }
    )
    for cut in cuts:
        shard = Shard(path, data[:cut], strict=strict)
        if cut >= end + 1024 or (not strict and (cut in offsets or cut >= end)):
            there = sum(offset < cut for offset in offsets)
            assert shard.index().samples.sum() == len(expected_rows(members[:there]))
        else:
            with pytest.raises(DataError) as caught:
                shard.index()
            assert caught.value.shard == shard.url
            assert caught.value.offset is not None


def test_a_gzipped_tar_cut_anywhere_is_never_taken_for_whole(tmp_path: Path) -> None:
    """The end of a gzip stream holds data and its checksum."""
    data = gzip.compress(tar_bytes(random_members(12)))
    for cut in {*range(0, len(data), 97), *range(len(data) - 12, len(data))}:
        with pytest.raises(DataError):
            Shard(tmp_path / "s.tar.gz", data[:cut]).index()


def test_one_member_cut_off_inside_a_complete_gzip_is_found(tmp_path: Path) -> None:
    """The tar was short before it was compressed."""
    data = tar_bytes(random_members(12))
    for cut in range(0, len(data.rstrip(b"\0")), 512):
        with pytest.raises(DataError):
            Shard(tmp_path / "s.tgz", gzip.compress(data[:cut])).index()


def test_zero_block_in_the_middle_and_data_after_the_end_are_errors(path: Path) -> None:
    """The error names the offset; `strict=False` ignores data after the end."""
    first, second = tar_bytes([("a.x", b"1")]), tar_bytes([("b.x", b"2")])
    hole = first[:1024] + bytes(512) + second
    for strict in (True, False):
        with pytest.raises(DataError, match="zero block stands in the middle") as caught:
            Shard(path, hole, strict=strict).index()
        assert caught.value.offset == 1024
    for tail in (second, bytes(512) + b"garbage"):
        with pytest.raises(DataError, match="follow the tar's end marker") as caught:
            Shard(path, first + tail).index()
        assert caught.value.offset == (len(first) if tail is second else len(first) + 512)
        assert Shard(path, first + tail, strict=False).whole()["__key__"].to_pylist() == ["a"]


@pytest.mark.parametrize("strict", [True, False])
def test_a_corrupt_header_is_an_error_with_its_offset(path: Path, strict: bool) -> None:
    """Each byte of a header counts, when indexing and when reading."""
    data = tar_bytes([(f"{i}.x", b"1") for i in range(5)])
    whole = Shard(path, data)
    blocks = whole.index()
    for at in range(2048, 2560, 37):
        damaged = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        with pytest.raises(DataError) as caught:
            Shard(path, damaged, strict=strict).index()
        assert caught.value.offset == 2048
        with pytest.raises(DataError):
            whole.read(blocks)


def test_sparse_and_unknown_members_are_refused(path: Path) -> None:
    """Sparse files of GNU and pax, and unknown types, are errors."""
    for kind, match in ((tarfile.GNUTYPE_SPARSE, "sparse"), (b"Z", "unknown type")):
        info = tarfile.TarInfo("a.x")
        info.type = kind
        with pytest.raises(DataError, match=match):
            Shard(path, info.tobuf(tarfile.USTAR_FORMAT) + bytes(1024)).index()
    info = tarfile.TarInfo("a.x")
    info.pax_headers = {"GNU.sparse.major": "1"}
    with pytest.raises(DataError, match="sparse"):
        Shard(path, info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)).index()


@pytest.mark.parametrize("fmt", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_headers_that_readers_take_in_different_ways_are_refused(path: Path, fmt: int) -> None:
    """A long name of wrong length, two names, an empty one, a folder's name for a file."""
    data = tar_bytes([("x" * 150 + ".a", b"1")], fmt)
    name, member = data[:1024], data[1024:]

    def with_field(block: bytes, at: int, value: bytes) -> bytes:
        block = block[:at] + value + block[at + len(value) :]
        total = sum(block[:148] + b" " * 8 + block[156:512])
        return block[:148] + b"%06o\0 " % total + block[156:]

    shorter = with_field(name, 124, b"00000000003\0")
    empty = with_field(name, 124, b"00000000000\0")[:512]
    cases = {
        "longer than its length": shorter + member,
        "two values for its name, or an empty one": name + name + member,
    }
    cases["folder by its name"] = tar_bytes([("x" * 150 + ".a/", b"1")], fmt)
    if fmt == tarfile.GNU_FORMAT:
        cases["or an empty one"] = empty + member
    else:
        info = tarfile.TarInfo("a.b")
        info.pax_headers = {"size": "1" * 5000}
        cases["corrupt pax header: a size of"] = info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)
    for said, tried in cases.items():
        with pytest.raises(DataError, match=said) as caught:
            Shard(path, tried).index()
        assert caught.value.offset is not None


def test_a_size_in_a_pax_header_and_in_base_256(path: Path) -> None:
    """Both write sizes past 8 GiB; the members here are small."""
    info = tarfile.TarInfo("a.x")
    info.pax_headers, info.size = {"size": "3"}, 0
    pax = info.tobuf(tarfile.PAX_FORMAT) + b"abc".ljust(512, b"\0")
    header = bytearray(tarfile.TarInfo("b.x").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + (3).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    gnu = bytes(header) + b"def".ljust(512, b"\0")
    table = Shard(path, pax + gnu + bytes(1024)).whole()
    assert rows_of(table) == [{"__key__": "a", "x": b"abc"}, {"__key__": "b", "x": b"def"}]


def test_a_shard_that_changed_since_indexing_is_an_error(path: Path) -> None:
    """Another size, other counts of samples, and moved headers are errors."""
    data = tar_bytes([(f"{i:03d}.x", bytes(100)) for i in range(8)])
    shard = Shard(path, data, block_bytes=2048)
    blocks = shard.index()
    path.write_bytes(data + bytes(512))
    with pytest.raises(DataError, match="changed since it was indexed"):
        shard.read(blocks)
    with pytest.raises(DataError, match="changed since it was indexed"):
        shard.index()
    path.write_bytes(tar_bytes([(f"{i // 2:03d}.{i % 2}", bytes(100)) for i in range(8)]))
    with pytest.raises(DataError, match="held 2 samples then and holds 1 now") as caught:
        shard.read(blocks)
    assert (caught.value.shard, caught.value.offset) == (shard.url, 0)
    path.write_bytes(tar_bytes([("000.x", bytes(3000))]).ljust(len(data), b"\0"))
    with pytest.raises(DataError):
        shard.read(blocks)


def test_a_small_file_that_grows_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger `max_expansion` accepts it."""
    monkeypatch.setattr("rayingest.formats.compression._ALWAYS_ALLOWED", 1000)
    shard = Shard(tmp_path / "s.tgz", gzip.compress(tar_bytes([("a.x", bytes(1 << 20))])))
    with pytest.raises(DataError, match="max_expansion"):
        shard.index()
    assert FORMAT.index(
        replace(shard.shard, options={"max_expansion": 2000}), 1
    ).samples.tolist() == [1]


def test_an_empty_tar_has_no_blocks_and_an_empty_file_is_an_error(path: Path) -> None:
    """A tar may have no samples, but must have an end marker."""
    assert len(Shard(path, tar_bytes([])).index()) == 0
    with pytest.raises(DataError, match="end marker"):
        Shard(path, b"").index()


def test_unknown_formats_are_named() -> None:
    """The error lists the registered formats."""
    with pytest.raises(ConfigError, match=r"unknown format 'tra'; registered are .*, webdataset"):
        get_format("tra")
