"""Damaged shards through the public API: all samples, or an error that names the place."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import rayingest as ri
from rayingest.errors import ConfigError, DataError
from rayingest.formats import get_format
from rayingest.formats.protocol import Shard
from rayingest.storage.files import Storage

Rows = list[tuple[int, str]]

COUNT = 40
TEXTS = [random.Random(i).randbytes(20 + 5 * i).hex() for i in range(COUNT)]
WHOLE: Rows = list(enumerate(TEXTS))


def tar(rows: Rows) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for i, text in rows:
            for extension, data in (("cls", str(i).encode()), ("txt", text.encode())):
                info = tarfile.TarInfo(f"{i:03d}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def parquet(rows: Rows) -> bytes:
    target = io.BytesIO()
    table = pa.table({"cls": [i for i, _ in rows], "txt": [text for _, text in rows]})
    pq.write_table(table, target, row_group_size=9, write_page_checksum=True)
    return target.getvalue()


def lines(rows: Rows) -> bytes:
    return b"".join(json.dumps({"cls": i, "txt": text}).encode() + b"\n" for i, text in rows)


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


FORMATS: dict[str, tuple[Callable[..., Any], Callable[[Rows], bytes]]] = {
    "s.tar": (ri.read_webdataset, tar),
    "s.tar.gz": (ri.read_webdataset, lambda rows: gzip.compress(tar(rows), mtime=0)),
    "s.parquet": (ri.read_parquet, parquet),
    "s.jsonl": (ri.read_json, lines),
    "s.jsonl.gz": (ri.read_json, lambda rows: gzip.compress(lines(rows), mtime=0)),
    "s.jsonl.zst": (ri.read_json, lambda rows: zst(lines(rows))),
}
CHECKED = ("s.tar.gz", "s.parquet", "s.jsonl.gz", "s.jsonl.zst")
"""Formats whose checksums cover the values; in others, a damaged value goes unnoticed."""

every_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture
def path(tmp_path: Path, name: str) -> Path:
    return tmp_path / name


def loader_of(path: Path) -> ri.Loader:
    read, _ = FORMATS[path.name]
    data = read(str(path), block_bytes=2000, index=f"{path}.index").select(cls="cls", txt="txt")
    loader: ri.Loader = data.batch(16, partial="short").loader(workers=0)
    return loader


def rows_of(loader: ri.Loader) -> Rows:
    return [
        row for batch in loader for row in zip(batch["cls"].tolist(), batch["txt"], strict=True)
    ]


def read(path: Path, data: bytes) -> Rows | DataError | ConfigError:
    """The samples of a file with these bytes, or the error that it ends in."""
    path.write_bytes(data)
    try:
        with loader_of(path) as loader:
            return rows_of(loader)
    except (DataError, ConfigError) as error:
        return error


def read_later(path: Path, before: bytes, now: bytes) -> Rows | DataError | ConfigError:
    """As `read` of a file that holds `before` while it is indexed and `now` when it is read."""
    path.write_bytes(before)
    with loader_of(path) as loader:
        path.write_bytes(now)
        try:
            return rows_of(loader)
        except DataError as error:
            return error


def is_placed(path: Path, found: Rows | DataError | ConfigError) -> bool:
    """Whether it is an error that says where."""
    return isinstance(found, DataError) and found.shard == str(path) and found.offset is not None


def is_whole(path: Path, found: Rows | DataError | ConfigError) -> bool:
    """Whether all samples are there, and are what they were where the format can tell."""
    return isinstance(found, list) and (
        found == WHOLE if path.name in CHECKED else len(found) == COUNT
    )


def flipped(data: bytes, seed: int, times: int) -> Iterator[bytes]:
    """Yield copies with one flipped bit: anywhere, and in the first and last bytes (headers)."""
    choose = random.Random(seed)
    for i in range(times):
        near = choose.randrange(min(len(data), 64))
        at = (choose.randrange(len(data)), near, len(data) - 1 - near)[i % 3]
        yield data[:at] + bytes([data[at] ^ (1 << choose.randrange(8))]) + data[at + 1 :]


@every_format
def test_undamaged_files_are_read_whole(path: Path) -> None:
    """The base of all other tests here: without damage, every sample is read."""
    data = FORMATS[path.name][1](WHOLE)
    assert read(path, data) == WHOLE
    assert read_later(path, data, data) == WHOLE


@every_format
def test_a_file_cut_anywhere_is_an_error(path: Path) -> None:
    """The error names the place. Exception: a plain JSON Lines file cut after a line."""
    data = FORMATS[path.name][1](WHOLE)
    choose = random.Random(3)
    cuts = {1, len(data) // 2, len(data) - 1, *(choose.randrange(len(data)) for _ in range(10))}
    if path.name == "s.tar":  # what is missing behind the end marker is padding
        cuts = {cut for cut in cuts if cut < len(data.rstrip(b"\0")) + 1024}
        cuts |= set(range(1536, 6000, 1024))
    for cut in sorted(cuts):
        found = read(path, data[:cut])
        if path.name == "s.jsonl" and data[:cut].endswith((b"\n", b"}")):
            assert isinstance(found, list)
        else:
            assert is_placed(path, found), (cut, found)
        later = read_later(path, data, data[:cut])
        assert is_placed(path, later), (cut, later)
        assert "changed since it was indexed" in str(later)


def test_a_plain_json_file_without_its_last_lines_is_found_after_indexing() -> None:
    """Before indexing, nothing shows that lines are missing."""
    data = lines(WHOLE)
    assert data[: data.index(b"\n") + 1] == lines(WHOLE[:1])


@every_format
def test_flipped_bits_are_found_wherever_there_is_a_checksum(path: Path) -> None:
    """Without a checksum, a value may differ, but no sample is lost."""
    data = FORMATS[path.name][1](WHOLE)
    errors = 0
    for damaged in flipped(data, 7, 24):
        for found in (read(path, damaged), read_later(path, data, damaged)):
            assert is_whole(path, found) or isinstance(found, (DataError, ConfigError)), found
            assert isinstance(found, (list, ConfigError)) or is_placed(path, found), found
            errors += not isinstance(found, list)
    assert errors > (20 if path.name in CHECKED else 2)


@every_format
@pytest.mark.parametrize("length", [1, 512, 1536])
def test_zeros_in_the_middle_are_found(path: Path, length: int) -> None:
    """In a tar, a value may become zeros, but no sample is lost."""
    data = FORMATS[path.name][1](WHOLE)
    last = data.rindex(b"039.txt") if path.name == "s.tar" else len(data)
    errors = 0
    for at in range(0, last - length, max(512, last // 7 // 512 * 512)):
        damaged = data[:at] + bytes(length) + data[at + length :]
        for found in (read(path, damaged), read_later(path, data, damaged)):
            assert is_placed(path, found) or is_whole(path, found), (at, found)
            errors += not isinstance(found, list)
    assert errors


def test_a_tar_that_was_not_written_to_its_end_is_an_error(tmp_path: Path) -> None:
    """More than 1 MiB of zeros after a header is an unfinished file, not padding."""
    data = tar(WHOLE)
    at = data.index(b"020.cls")
    cut = data[:at] + bytes(1_100_000)
    found = read(tmp_path / "s.tar", cut)
    assert is_placed(tmp_path / "s.tar", found)
    assert isinstance(found, DataError)
    assert found.offset == at
    assert isinstance(
        read_later(tmp_path / "s.tar", data, data[:at].ljust(len(data), b"\0")), DataError
    )
    (tmp_path / "s.tar").write_bytes(cut)
    with (
        ri.read_webdataset(str(tmp_path / "s.tar"), strict=False)
        .batch(1)
        .loader(workers=0) as loader
    ):
        assert len(loader) == 20


@every_format
def test_empty_files_are_errors(path: Path) -> None:
    """Files of no bytes, of zeros, or without samples are errors if they cannot be whole."""
    read_, make = FORMATS[path.name]
    for data in (b"", bytes(1024), bytes(20_000), make([])):
        found = read(path, data)
        assert isinstance(found, ConfigError) or is_placed(path, found), (data[:20], found)
    assert "no sample in any of the 1 shards" in str(read(path, make([])))
    folder = path.parent / "several"
    folder.mkdir()
    (folder / f"0{path.suffix}").write_bytes(b"")
    for name in (f"0{path.name}", f"1{path.name}"):
        (folder / name).write_bytes(make(WHOLE) if name.startswith("1") else b"")
    data = read_(str(folder / f"*{path.name}")).batch(1)
    if path.name == "s.jsonl":  # nothing tells that there was more
        with data.loader(workers=0) as loader:
            assert len(loader) == COUNT
    else:
        with pytest.raises(DataError, match=r"0s\."):
            data.loader(workers=0)


@every_format
def test_a_file_that_grew_is_an_error(path: Path) -> None:
    """Bytes added after indexing are an error, samples or not."""
    _, make = FORMATS[path.name]
    data, more = make(WHOLE), make([*WHOLE, (COUNT, "more")])
    if path.name == "s.tar":  # one more would fit into the padding
        more = make([*WHOLE, *((COUNT + i, "more") for i in range(20))])
    for now in (data + b"\0", data + b" ", data + data, more, data + bytes(10_240)):
        later = read_later(path, data, now)
        assert is_placed(path, later), later
        assert "changed since it was indexed" in str(later)


@every_format
def test_other_samples_in_as_many_bytes_are_an_error(path: Path) -> None:
    """Block borders, counts or the file's end show that samples were replaced."""
    _, make = FORMATS[path.name]
    data = make(WHOLE)
    for count in (1, COUNT // 2, COUNT - 1):
        fewer = make(WHOLE[:count])
        now = fewer.ljust(len(data), b"\0" if path.name.startswith("s.tar") else b" ")
        assert is_placed(path, read_later(path, data, now[: len(data)]))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[" * 100_000, "RecursionError|not readable JSON"),
        (b'{"cls": 1', "not readable JSON"),
        (b"[1]", "an object"),
    ],
)
def test_lines_that_are_no_objects_are_named(tmp_path: Path, line: bytes, said: str) -> None:
    """The error names the byte at which the line begins."""
    data = lines(WHOLE[:3]) + line + b"\n" + lines(WHOLE[3:])
    found = read(tmp_path / "s.jsonl", data)
    assert is_placed(tmp_path / "s.jsonl", found)
    assert isinstance(found, DataError)
    assert found.offset == len(lines(WHOLE[:3]))
    assert found.sample == 3
    with pytest.raises(DataError, match=said):
        raise found


def test_values_that_python_cannot_hold_are_data_errors(tmp_path: Path) -> None:
    """A time beyond year 9999 and text that is not UTF-8 are data errors."""
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table({"t": pa.array([0, 1 << 61], pa.timestamp("us"))}), path)
    with (
        ri.read_parquet(path).batch(2).loader(workers=0) as loader,
        pytest.raises(DataError, match=r"sample 1\]"),
    ):
        next(iter(loader))
    path.unlink()
    binary = pa.array([b"\xff\xfe"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, binary.buffers())
    pq.write_table(pa.table({"t": text}), path)
    with (
        ri.read_parquet(path).batch(1).loader(workers=0) as loader,
        pytest.raises(DataError, match="UTF8") as caught,
    ):
        next(iter(loader))
    assert (caught.value.shard, caught.value.offset) == (str(path), 0)


@pytest.mark.parametrize("third", range(3))
def test_a_footer_that_ends_the_process_elsewhere_is_an_error_here(
    tmp_path: Path, third: int
) -> None:
    """pyarrow aborts on some damaged footers; no damaged byte of a footer does so here."""
    data = parquet(WHOLE[:12])
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path = tmp_path / "s.parquet"
    errors = 0
    for at in range(begin + third, len(data), 5):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        try:
            blocks = get_format("parquet").index(Shard(Storage(), str(path), len(data)), 1)
        except DataError:
            errors += 1
        else:
            assert blocks.samples.sum() == 12
    assert errors > 20
