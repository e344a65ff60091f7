"""MDS: every encoding, hashes, and the decisions of an index.json."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayingest as ri
from rayingest.formats import get_format
from rayingest.storage.files import Storage
from tests.data.make_mds import NUMBERS, encodings, pixels
from tests.support.format_cases import DATA

MDS = DATA / "mds"


def first(data: Any) -> dict[str, Any]:
    """The first two samples' columns."""
    with data.batch(2).loader(workers=0) as loader:
        batch: dict[str, Any] = next(iter(loader))
        return batch


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MDS / "plain", tmp_path / "mds"))


def test_every_encoding_is_decoded() -> None:
    """Values equal those given to the format's writer; pickles are refused, but for bytes."""
    data = ri.read_mds(MDS / "encodings")
    with pytest.raises(
        ri.ConfigError, match=r"field 'pickled' is pickled.*\.decode\(pickled=bytes\)"
    ):
        first(data)
    batch = first(data.decode(pickled=bytes))
    for name in NUMBERS:
        assert batch[name].tolist() == [encodings(i)[name][1] for i in range(2)]
        dtype = "int64" if name == "int" else name
        assert str(batch[name].numpy().dtype) == dtype
    assert batch["bytes"] == [b"\0\xff", b"\1\xff"]
    assert batch["str"] == ["ünïcode 0", "ünïcode 1"]
    assert batch["str_float"].tolist() == [0.25, 1.25]
    assert batch["str_decimal"] == [Decimal("0.125"), Decimal("1.125")]
    assert batch["json"] == [{"i": 0, "l": [1, None]}, {"i": 1, "l": [1, None]}]
    assert batch["str_int"].tolist() == [10**15, 10**15 + 1]
    assert batch["array"].tolist() == [encodings(i)["array"][1].tolist() for i in range(2)]
    assert batch["array_typed"][1, :301].tolist() == list(range(301))
    assert batch["array_typed_length"].tolist() == [300, 301]
    assert batch["array_shaped"].tolist() == [
        encodings(i)["array_shaped"][1].tolist() for i in range(2)
    ]
    assert batch["vector"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert "vector_length" not in batch
    for name in ("pil", "png", "pil_alpha"):
        assert np.array_equal(batch[name], [pixels(0), pixels(1)]), name
    assert batch["pil_grey"].shape == batch["jpeg"].shape == (2, 4, 6, 3)
    assert [len(images) for images in batch["pngs"]] == [0, 1]
    assert np.array_equal(batch["pils"][1], [pixels(1)] * 2)


def test_decoders_are_given_values_or_the_contents_of_files() -> None:
    """A decoder gets arrays and numbers as values; images, JSON and pickles as bytes."""
    kinds: dict[str, Any] = {
        name: lambda value: type(value).__name__
        for name in ("array", "vector", "str_int", "str", "png")
    }
    found = first(
        ri.read_mds(MDS / "encodings").select(**{name: name for name in kinds}).decode(**kinds)
    )
    assert {name: found[name][0] for name in kinds} == {
        "array": "ndarray",
        "vector": "ndarray",
        "str_int": "int",
        "str": "str",
        "png": "bytes",
    }


def test_a_shard_that_is_there_plain_and_compressed_is_read_once(plain: Path, caplog: Any) -> None:
    """A writer that keeps both files causes no warning."""
    index = json.loads((plain / "index.json").read_text())
    name = index["shards"][0]["raw_data"]["basename"]
    index["shards"][0]["zip_data"] = {"basename": f"{name}.gz", "bytes": 4, "hashes": {}}
    before = len(get_format("mds").shards(str(plain), Storage(), 1, {}))
    (plain / "index.json").write_text(json.dumps(index))
    (plain / f"{name}.gz").write_bytes(b"four")
    assert len(get_format("mds").shards(str(plain), Storage(), 1, {})) == before
    assert not caplog.records


def test_every_shard_that_the_index_names_is_needed_and_no_other_is_read(
    plain: Path, caplog: Any
) -> None:
    """Holds for a glob too; without an index, all shards are read."""
    shutil.copy(MDS / "encodings" / "shard.00000.mds", plain / "left.mds")
    with ri.read_mds(plain.parent).batch(40).loader(workers=0) as loader:
        assert len(loader) == 1
    assert "are not read, since no index.json names them" in caplog.text
    (plain / "shard.00001.mds").unlink()
    with pytest.raises(
        ri.DataError, match=r"the shard is missing, and index.json names it"
    ) as caught:
        ri.read_mds(plain).batch(1).loader(workers=0)
    assert caught.value.shard == str(plain / "shard.00001.mds")
    (plain / "index.json").unlink()
    (plain / "left.mds").unlink()
    with ri.read_mds(plain).batch(1).loader(workers=0) as loader:
        assert 0 < len(loader) < 40


def test_an_index_above_the_shards_folders_decides_for_all(plain: Path) -> None:
    """A merged index has names with folders in them."""
    index = json.loads((plain / "index.json").read_text())
    for shard in index["shards"]:
        shard["raw_data"]["basename"] = "mds/" + shard["raw_data"]["basename"]
    del index["shards"][0]
    (plain.parent / "index.json").write_text(json.dumps(index))
    with ri.read_mds(plain.parent).batch(40, partial="short").loader(workers=0) as loader:
        assert next(iter(loader))["id"].min() > 0


def test_what_an_index_says_is_checked(plain: Path) -> None:
    """Sizes, counts, versions and hashes must match; plain shards on request."""
    path = plain / "index.json"
    text = path.read_text()
    counts = {shard["samples"] for shard in json.loads(text)["shards"]}
    count = f'"samples": {counts.pop()}'
    cases = {
        "its sha1 is not": text.replace('"sha1": "', '"sha1": "0'),
        "samples, and 99 by its index.json": text.replace(count, '"samples": 99'),
        "bytes, and 1 by its index.json": text.replace('"bytes": ', '"bytes": 1, "was": '),
        "only MDS 2 is supported": text.replace('"version": 2', '"version": 3'),
        "not a known kind of index": "[]",
    }
    for said, damaged in cases.items():
        path.write_text(damaged)
        with pytest.raises(ri.DataError, match=said):
            ri.read_mds(plain, check_hashes=True).batch(1).loader(workers=0)
    shutil.rmtree(plain)
    shutil.copytree(MDS / "zstd", plain)
    path.write_text(path.read_text().replace('"sha1": "', '"sha1": "0'))
    with pytest.raises(ri.DataError, match="its sha1 is not"):
        ri.read_mds(plain).batch(1).loader(workers=0)


def test_hashes_of_optional_libraries_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error for a missing xxhash names the extra to install."""
    data = ri.read_mds(MDS / "encodings", check_hashes=True, index=tmp_path).select(i="int")
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    with pytest.raises(
        ri.ConfigError, match=r"xxh3_64 .* needs 'xxhash': pip install 'rayingest\[mds\]'"
    ):
        first(data)
    monkeypatch.undo()
    pytest.importorskip("xxhash")
    assert first(data)["i"].tolist() == [1, 2]


def test_damage_inside_a_shard_is_found(plain: Path) -> None:
    """Damage to sizes, offsets or the description is an error; values have no checksum."""
    path = plain / "shard.00000.mds"
    whole = path.read_bytes()
    (plain / "index.json").unlink()
    samples = int.from_bytes(whole[:4], "little")
    first_sample = int.from_bytes(whole[4:8], "little")
    for at in (0, 4, 4 + 4 * samples, 8 + 4 * samples, first_sample):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with (
            pytest.raises(ri.DataError) as caught,
            ri.read_mds(path).batch(1).loader(workers=0) as loader,
        ):
            list(loader)
        assert caught.value.shard == str(path)
        assert caught.value.offset is not None
