"""LitData: every kind of value, and the forms of chunks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import rayingest as ri
from rayingest.api.dataset import Dataset
from tests.data.make_litdata import pixels
from tests.support.format_cases import DATA
from tests.support.format_samples import SAMPLES

LITDATA = DATA / "litdata"


def batch(data: Dataset, size: int) -> dict[str, Any]:
    with data.batch(size).loader(workers=0) as loader:
        found: dict[str, Any] = next(iter(loader))
        return found


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LITDATA / "packed", tmp_path / "data"))


def test_every_kind_of_value_is_decoded() -> None:
    """Nested values are fields named after their leaves."""
    found = batch(ri.read_litdata(LITDATA / "kinds"), 2)
    assert (found["int"].tolist(), found["float"].tolist(), found["bool"].tolist()) == (
        [0, 1],
        [0.5, 1.5],
        [False, True],
    )
    assert (found["str"], found["bytes"]) == (["ü0", "ü1"], [b"\0", b"\1"])
    assert str(found["matrix"].dtype) == "torch.float16"
    assert found["matrix"].tolist() == [
        [[i, i + 1, i + 2], [i + 3, i + 4, i + 5]] for i in range(2)
    ]
    assert str(found["vector"].dtype) == "torch.int16"
    assert (found["vector"].tolist(), found["vector_length"].tolist()) == (
        [[0, 1, 2, 0], [0, 1, 2, 3]],
        [3, 4],
    )
    assert found["tensor"].tolist() == [[[i, i + 1], [i + 2, i + 3]] for i in range(2)]
    assert str(found["tensor"].dtype) == "torch.int32"
    assert found["row"].tolist() == [[0, 1, 0], [0, 1, 2]]
    assert np.array_equal(found["image"], [pixels(0), pixels(1)])
    assert found["inside.numbers"].tolist() == [[0, 2], [1, 2]]
    assert found["inside.texts"] == [["a", "b0"], ["a", "b1"]]
    assert found["inside.mixed"] == [[1, "x", None]] * 2
    assert (found["pair.0"].tolist(), found["pair.1"]) == ([0, 1], ["second"] * 2)


def test_compressed_chunks_are_one_block(packed: Path) -> None:
    """Chunks compressed as a whole, as older versions write them, are read."""
    index = json.loads((packed / "index.json").read_text())
    index["config"]["compression"] = "zstd"
    for chunk in index["chunks"]:
        path = packed / chunk["filename"]
        chunk["filename"] = path.stem + ".zstd.bin"
        (packed / chunk["filename"]).write_bytes(zstandard.compress(path.read_bytes()))
        path.unlink()
    (packed / "index.json").write_text(json.dumps(index))
    assert batch(ri.read_litdata(packed), 40)["text"] == [text for _, text in SAMPLES]


def test_chunks_come_in_the_order_of_the_index(packed: Path) -> None:
    """From the eleventh chunk on, the order of names differs."""
    path = packed / "index.json"
    index = json.loads(path.read_text())
    assert len(index["chunks"]) > 1
    for number, chunk in enumerate(index["chunks"]):
        name = f"chunk-0-{9 + number}.bin"
        (packed / chunk["filename"]).rename(packed / name)
        chunk["filename"] = name
    path.write_text(json.dumps(index))
    assert batch(ri.read_litdata(packed), 40)["text"] == [text for _, text in SAMPLES]


def test_what_is_not_read_is_named(packed: Path) -> None:
    """Other forms of chunks, encryption, unknown kinds and pickles are errors."""
    path = packed / "index.json"
    text = path.read_text()
    cases = {
        "encrypted": ('"encryption": null', '"encryption": {"a": 1}'),
        "TokensLoader are not supported": ("PyTreeLoader", "TokensLoader"),
        "the kind 'graph' of field": ('["int", "str"', '["graph", "str"'),
        "version 2 of data_spec": ('"[1, ', '"[2, '),
    }
    for said, (old, new) in cases.items():
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(ri.DataError, match=said) as caught:
            batch(ri.read_litdata(packed), 1)
        assert caught.value.shard == str(path)
    path.write_text(text.replace('["int", "str"', '["int", "pickle"'))
    with pytest.raises(ri.ConfigError, match="field 'text' is pickled"):
        batch(ri.read_litdata(packed), 1)
    path.unlink()
    with pytest.raises(ri.DataError, match="chunks cannot be read without it"):
        batch(ri.read_litdata(packed), 1)
    path.write_text(text)
    chunk = packed / "chunk-0-0.bin"
    whole = chunk.read_bytes()
    for data, said in (
        (b"LDFZ01\0\0" + whole[8:], "batch by batch"),
        (whole[:8] + b"\xff" + whole[9:], "cut off or damaged"),
    ):
        chunk.write_bytes(data)
        with pytest.raises(ri.DataError, match=said):
            batch(ri.read_litdata(packed), 1)
