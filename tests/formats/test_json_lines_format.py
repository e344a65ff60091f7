"""JSON Lines: begins and ends of samples, plain and compressed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from rayingest.errors import DataError
from rayingest.formats import get_format, json_lines, protocol
from rayingest.plan.order.manifest import ShardBlocks
from rayingest.storage.files import Storage

FORMAT = get_format("json_lines")
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def lines_of(count: int) -> list[bytes]:
    rng = np.random.default_rng(0)
    return [
        json.dumps({"i": i, "text": "ü" * int(rng.integers(0, 90))}).encode() for i in range(count)
    ]


class Shard:
    def __init__(self, path: Path, data: bytes, block_bytes: int = 1 << 21) -> None:
        path.write_bytes(data)
        self.url, self.block_bytes = str(path), block_bytes
        self.shard = protocol.Shard(Storage(), self.url, len(data))

    def index(self) -> ShardBlocks:
        return FORMAT.index(self.shard, self.block_bytes)

    def read(self, blocks: ShardBlocks) -> list[pa.Table]:
        triples = list(
            zip(blocks.begin.tolist(), blocks.end.tolist(), blocks.samples.tolist(), strict=True)
        )
        return FORMAT.read(self.shard, triples, None)

    def whole(self) -> pa.Table:
        return pa.concat_tables(self.read(self.index()))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("ending", [b"\n", b""])
@pytest.mark.parametrize("chunk", [1, 50, 4 << 20])
def test_lines_are_samples_and_blank_ones_are_not(
    tmp_path: Path, suffix: str, ending: bytes, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds with and without a last line end, for CRLF, and for any chunks of the file."""
    monkeypatch.setattr(json_lines, "_CHUNK", chunk)
    lines = [b"", b'{"a": 1}', b"  ", b' {"b": 2}\r', b"", b"\t\r", b"[3]", b"  4"]
    data = b"\n".join(lines) + ending
    shard = Shard(tmp_path / f"s.jsonl{suffix}", COMPRESS[suffix](data), block_bytes=10)
    table = shard.whole()
    assert table["__json__"].to_pylist() == [b'{"a": 1}', b' {"b": 2}', b"[3]", b"  4"]
    assert table.column_names == ["__json__", "__offset__"]
    assert table.schema.metadata == {b"shard": shard.url.encode()}
    starts = [data.index(text) for text in (b'{"a', b' {"b', b"[3]", b"  4")]
    assert table["__offset__"].to_pylist() == ([1, 3, 6, 7] if suffix else starts)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_what_json_writes_is_read_back_in_blocks_and_joined(tmp_path: Path, suffix: str) -> None:
    """A compressed shard is one block, a plain one many; joined, they are the whole file."""
    lines = lines_of(3000)
    data = b"".join(line + b"\n" for line in lines)
    shard = Shard(tmp_path / f"s.ndjson{suffix}", COMPRESS[suffix](data), block_bytes=5000)
    blocks = shard.index()
    assert len(blocks) == 1 if suffix else len(blocks) > 20
    assert blocks.nbytes.sum() == len(data)
    assert shard.whole()["__json__"].to_pylist() == lines
    while len(blocks) > 1:
        blocks = blocks.coarser()
        assert pa.concat_tables(shard.read(blocks))["__json__"].to_pylist() == lines
    offsets = shard.whole()["__offset__"].to_pylist()
    assert offsets == (list(range(3000)) if suffix else [data.index(line) for line in lines])


def test_blocks_hold_at_most_1024_samples(tmp_path: Path) -> None:
    """The limit holds for lines of any length."""
    assert Shard(tmp_path / "s.json", b"1\n" * 2500, 1 << 30).index().samples.tolist() == [
        1024,
        1024,
        452,
    ]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_cut_anywhere_is_an_error(tmp_path: Path, suffix: str) -> None:
    """A cut file is never a short one, whichever byte is missing."""
    data = COMPRESS[suffix](b"".join(line + b"\n" for line in lines_of(100)))
    whole = Shard(tmp_path / f"w.jsonl{suffix}", data)
    blocks = whole.index()
    for cut in {*range(0, len(data), 61), *range(len(data) - 12, len(data))}:
        with pytest.raises(DataError, match="cut off"):
            Shard(tmp_path / f"s.jsonl{suffix}", data[:cut]).index()
        Path(whole.url).write_bytes(data[:cut])
        with pytest.raises(DataError, match="changed since"):
            whole.read(blocks)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damaged_compressed_data_and_trailing_garbage_are_errors(
    tmp_path: Path, suffix: str
) -> None:
    """The error names the shard."""
    compress = (
        COMPRESS[suffix]
        if suffix == ".gz"
        else zstandard.ZstdCompressor(write_checksum=True).compress
    )
    data = compress(b"".join(line + b"\n" for line in lines_of(100)))
    middle = len(data) // 2
    for damaged in (
        data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
        data + b"garbage",
        b"garbage",
    ):
        with pytest.raises(DataError) as caught:
            Shard(tmp_path / f"s.jsonl{suffix}", damaged).index()
        assert caught.value.shard == str(tmp_path / f"s.jsonl{suffix}")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_several_members_or_frames_are_one_file(tmp_path: Path, suffix: str) -> None:
    """`cat a.gz b.gz` is one file, even if a line crosses the border."""
    data = COMPRESS[suffix](b"1\n2") + COMPRESS[suffix](b"2\n3\n")
    assert Shard(tmp_path / f"s.jsonl{suffix}", data).whole()["__json__"].to_pylist() == [
        b"1",
        b"22",
        b"3",
    ]


def test_a_plain_file_that_changed_since_indexing_is_an_error(tmp_path: Path) -> None:
    """A cut last line, another size, moved lines and another count are errors."""
    lines = lines_of(100)
    data = b"".join(line + b"\n" for line in lines)
    shard = Shard(tmp_path / "s.jsonl", data, block_bytes=1000)
    blocks, path = shard.index(), Path(shard.url)
    for cut in [*range(0, len(data), 173), len(data) - 1]:
        path.write_bytes(data[:cut])
        with pytest.raises(DataError, match="changed since it was indexed"):
            shard.read(blocks)
    shorter = lines[0].replace(b"text", b"t").ljust(len(lines[0]) - 1)
    path.write_bytes(data.replace(lines[0], shorter, 1).ljust(len(data), b"\n"))
    with pytest.raises(DataError, match="no line ends here") as caught:
        shard.read(blocks)
    assert caught.value.offset == blocks.end[0]
    path.write_bytes(data.replace(b"\n", b" ", 1))
    with pytest.raises(DataError, match=r"samples then and holds \d+ now"):
        shard.read(blocks)


def test_a_file_without_samples_has_no_blocks(tmp_path: Path) -> None:
    """Empty, blank and compressed empty files have no blocks."""
    assert len(Shard(tmp_path / "a.json", b"").index()) == 0
    assert len(Shard(tmp_path / "b.json", b" \n\n\t").index()) == 0
    assert len(Shard(tmp_path / "c.json.gz", gzip.compress(b"")).index()) == 0
    assert (
        len(Shard(tmp_path / "d.json.zst", zstandard.ZstdCompressor().compress(b"\n")).index()) == 0
    )
