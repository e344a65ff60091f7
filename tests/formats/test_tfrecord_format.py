"""TFRecord: frames, their checksums, and what features of an Example become."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from tests.support.format_cases import DATA
from tests.support.format_samples import SAMPLES

SHARD = DATA / "tfrecord" / "samples" / "s-0.tfrecord"
ABC = bytes.fromhex("0300000000000000b099490e6162636e57f121")
"""A record of "abc", as the format's description has it."""


def batch(data: Any, size: int = 3) -> dict[str, Any]:
    with data.batch(size).loader(workers=0) as loader:
        found: dict[str, Any] = next(iter(loader))
        return found


def test_features_are_one_value_or_lists_as_the_user_says() -> None:
    """Lists of any length, missing ones too, have one type; other multiple values are refused."""
    both = batch(ri.read_tfrecord(SHARD, lists=["many", "scores"]))
    assert both["id"].tolist() == [0, 1, 2]
    assert both["text"] == [text for _, text in SAMPLES[:3]]
    assert both["many"].tolist() == [[-i, i, 1 << 40] for i in range(3)]
    assert both["scores"].tolist() == [[0, 0], [0.5, 0], [0.5, 0.5]]
    assert both["scores_length"].tolist() == [0, 1, 2]
    assert str(both["scores"].dtype) == "torch.float32"
    assert batch(ri.read_tfrecord(SHARD, lists=["text"]).select(text="text"))["text"][0] == [
        SAMPLES[0][1].encode()
    ]
    lacking = batch(ri.read_tfrecord(SHARD, lists=["many", "scores", "none"]).select(none="none"))
    assert (lacking["none"].shape, lacking["none_length"].tolist()) == ((3, 0), [0, 0, 0])
    with pytest.raises(
        ri.DataError,
        match=r"'many' holds 3 values instead of one: read it as a list, lists=\['many', ...\]",
    ):
        batch(ri.read_tfrecord(SHARD, lists=["scores"]))
    with pytest.raises(
        ri.ConfigError, match="no field 'nope'; there are 'id', 'many', 'scores', 'text'"
    ):
        batch(ri.read_tfrecord(SHARD).select(nope="nope"))


def test_records_that_are_no_examples_are_bytes(tmp_path: Path) -> None:
    """Without `examples=False`, such a record is an error that names its place."""
    path = tmp_path / "s.tfrecord"
    path.write_bytes(3 * ABC)
    data = ri.read_tfrecord(path, examples=False)
    assert batch(data)["record"] == 3 * [b"abc"]
    assert batch(data.select(r="record"))["r"] == 3 * [b"abc"]
    with pytest.raises(ri.DataError, match=r"not a tf.train.Example.*offset 0") as caught:
        batch(ri.read_tfrecord(path))
    assert caught.value.sample == 0


def test_compressed_files_are_one_block(tmp_path: Path) -> None:
    """Samples and offsets are those of the plain file."""
    path = tmp_path / "s.tfrecord.gz"
    path.write_bytes(gzip.compress(SHARD.read_bytes()))
    assert batch(ri.read_tfrecord(path).select(id="id"))["id"].tolist() == [0, 1, 2]
    path.write_bytes(gzip.compress(SHARD.read_bytes()[:-1]))
    with pytest.raises(ri.DataError, match="cut off inside a record"):
        batch(ri.read_tfrecord(path))


def test_every_byte_is_covered_by_a_checksum(tmp_path: Path) -> None:
    """Indexing checks the length of a record, reading its data."""
    path = tmp_path / "s.tfrecord"
    for at in range(len(ABC)):
        damaged = ABC[:at] + bytes([ABC[at] ^ 4]) + ABC[at + 1 :]
        path.write_bytes(ABC + damaged + ABC)
        with pytest.raises(ri.DataError) as caught:
            batch(ri.read_tfrecord(path, examples=False))
        assert (caught.value.shard, caught.value.offset) == (str(path), len(ABC)), at


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a missing checksum library names the extra to install."""
    monkeypatch.setitem(__import__("sys").modules, "google_crc32c", None)
    with pytest.raises(
        ri.ConfigError, match=r"needs 'google_crc32c': pip install 'rayingest\[tfrecord\]'"
    ):
        ri.read_tfrecord(SHARD.parent, index="/nowhere/x").batch(1).loader(workers=0)
