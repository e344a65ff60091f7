"""Arrow IPC: batches as blocks, dictionaries, and Hugging Face's features (in Parquet too)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset
from tests.data.make_huggingface import pixels
from tests.support.format_cases import DATA


def batch(data: Dataset, size: int) -> dict[str, Any]:
    with data.batch(size).loader(workers=0) as loader:
        found: dict[str, Any] = next(iter(loader))
        return found


def dictionaries(count: int) -> pa.Table:
    """Batches of two rows, each with a dictionary of its own."""
    batches = [
        pa.record_batch({"n": [i, i], "word": pa.array([f"w{i}", "x"]).dictionary_encode()})
        for i in range(count)
    ]
    return pa.Table.from_batches(batches)


def test_dictionaries_between_batches_are_understood(tmp_path: Path) -> None:
    """Dictionaries that replace each other make a shard one block; leading ones do not."""
    path = str(tmp_path / "s.arrow")
    with pa.ipc.new_stream(path, dictionaries(5).schema) as writer:
        writer.write_table(dictionaries(5))
    data = ri.read_arrow(path, block_bytes=1)
    found = batch(data, 10)
    assert found["word"] == [word for i in range(5) for word in (f"w{i}", "x")]
    with pa.ipc.new_file(path, dictionaries(5).schema) as writer:
        writer.write_table(dictionaries(5).unify_dictionaries(), max_chunksize=2)
    assert batch(ri.read_arrow(path, block_bytes=1).shuffle(seed=1), 10)[
        "n"
    ].sort().values.tolist() == sorted([*range(5)] * 2)


def test_batches_without_rows_and_empty_files(tmp_path: Path) -> None:
    """Batches without rows are not blocks; data without any row is an error."""
    path = str(tmp_path / "s.arrow")
    schema = pa.schema({"n": pa.int64()})
    with pa.ipc.new_file(path, schema) as writer:
        for values in ([], [1, 2], [], [3], []):
            writer.write_batch(pa.record_batch({"n": pa.array(values, pa.int64())}))
    assert batch(ri.read_arrow(path, block_bytes=1), 3)["n"].tolist() == [1, 2, 3]
    with pa.ipc.new_file(path, schema):
        pass
    with pytest.raises(ri.ConfigError, match="no sample in any"):
        batch(ri.read_arrow(path), 1)


def test_other_files_are_named(tmp_path: Path) -> None:
    """Feather 1, other files, concatenated streams and an unknown column are errors."""
    path = tmp_path / "s.arrow"
    with pa.ipc.new_stream(str(path), dictionaries(2).schema) as writer:
        writer.write_table(dictionaries(2))
    whole = path.read_bytes()
    with pytest.raises(ri.ConfigError, match=r"no (field|column) 'nope'"):
        batch(ri.read_arrow(path).select(nope="nope"), 1)
    cases = {
        b"FEA1" + bytes(60): "Feather version 1",
        b"{}": "is not Arrow",
        whole + whole: "data follow the end",
    }
    for data, said in cases.items():
        path.write_bytes(data)
        with pytest.raises(ri.DataError, match=said) as caught:
            batch(ri.read_arrow(path), 1)
        assert caught.value.shard == str(path)


def test_damage_is_an_error_or_a_value(tmp_path: Path) -> None:
    """Changing any byte of a file never causes a crash, a hang, or fewer samples."""
    path = tmp_path / "s.feather"
    table = pa.table({"n": [1, 2, 3], "text": ["a", "bb", None], "list": [[1], [], [2, 3]]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    whole = path.read_bytes()
    errors = 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x91]) + whole[at + 1 :])
        try:
            assert len(batch(ri.read_arrow(path, index=tmp_path / "index"), 3)["n"]) == 3
        except (ri.DataError, ri.ConfigError):
            errors += 1
    assert errors > 50


def test_a_saved_folder_is_what_its_state_names(tmp_path: Path, caplog: Any) -> None:
    """Cached files of the library are not read; a missing file is an error."""
    folder = Path(shutil.copytree(DATA / "huggingface" / "arrow", tmp_path / "data"))
    first, second = sorted(folder.glob("*.arrow"))
    shutil.copy(first, folder / "cache-1234.arrow")
    assert batch(ri.read_arrow(folder), 3)["text"] == ["t0", "t1", "t2"]
    assert "cache-1234.arrow" in caplog.text
    second.unlink()
    with pytest.raises(
        ri.DataError, match=r"the shard is missing, and state.json names it"
    ) as caught:
        batch(ri.read_arrow(folder), 1)
    assert caught.value.shard == str(second)


@pytest.mark.parametrize("name", ["arrow", "data.parquet"])
def test_features_of_hugging_face_datasets_are_what_they_are(name: str) -> None:
    """Images are images and arrays are arrays, in a saved folder and in Parquet files."""
    read = ri.read_parquet if name.endswith("parquet") else ri.read_arrow
    found = batch(read(DATA / "huggingface" / name), 3)
    assert np.array_equal(found["image"], [pixels(i) for i in range(3)])
    assert found["label"].tolist() == [0, 1, 0]
    assert found["matrix"].tolist() == [[[i, 1, 2], [3, 4, 5]] for i in range(3)]
    assert found["text"] == ["t0", "t1", "t2"]
    cropped = batch(
        read(DATA / "huggingface" / name)
        .decode(image=ri.images.CenterCrop(2))
        .select(image="image"),
        3,
    )
    assert cropped["image"].shape == (3, 2, 2, 3)
