"""HDF5: which datasets are fields, and what their values become."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset
from rayingest.formats import get_format
from rayingest.formats.protocol import Shard
from rayingest.storage.files import Storage


def batch(data: Dataset, size: int) -> dict[str, Any]:
    with data.batch(size).loader(workers=0) as loader:
        found: dict[str, Any] = next(iter(loader))
        return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.h5"


def test_data_sets_are_fields(path: Path) -> None:
    """Arrays, numbers, booleans, text and lists of any length are fields, in groups too."""
    with h5py.File(path, "w") as file:
        file["image"] = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
        file["flag"] = [True, False, True, False]
        file["group/text"] = ["a", "bü", "", "d"]
        file["group/fixed"] = np.array([b"ab", b"c", b"", b"d"])
        lists = file.create_dataset("lists", (4,), dtype=h5py.vlen_dtype(np.int32))
        lists[:] = np.array([np.arange(i) for i in range(4)], object)
        file["about"] = "no rows"
    found = batch(ri.read_hdf5(path, block_bytes=1), 4)
    assert np.array_equal(found["image"], np.arange(24).reshape(4, 3, 2))
    assert found["image"].numpy().dtype == np.uint8
    assert found["flag"].tolist() == [True, False, True, False]
    assert found["group/text"] == ["a", "bü", "", "d"]
    assert found["group/fixed"] == ["ab", "c", "", "d"]
    assert found["lists"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 2]]
    assert found["lists_length"].tolist() == [0, 1, 2, 3]
    assert "about" not in found


def test_what_lies_in_other_files_is_refused(path: Path) -> None:
    """Views of other files are refused, and so are several texts per row."""
    with h5py.File(path.with_name("other.h5"), "w") as file:
        file["x"] = np.arange(3)
    layout = h5py.VirtualLayout((3,), int)
    layout[:] = h5py.VirtualSource(str(path.with_name("other.h5")), "x", (3,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("view", layout)
        file.create_dataset("names", data=[["a", "b"]] * 3, dtype=h5py.string_dtype())
    with pytest.raises(ri.ConfigError, match=r"'view' of .* is a view of other files"):
        batch(ri.read_hdf5(path, fields=["view"]), 1)
    with pytest.raises(
        ri.ConfigError, match=r"'names' of .* holds several values of variable length per row"
    ):
        batch(ri.read_hdf5(path, fields=["names"]), 1)


def test_fields_can_be_chosen_where_lengths_differ(path: Path) -> None:
    """Different lengths, a missing dataset and an unsupported type are errors."""
    with h5py.File(path, "w") as file:
        file["x"], file["y"], file["means"] = np.zeros((4, 2)), np.arange(4), np.zeros(2)
        file["pairs"] = np.zeros(4, [("a", "i4"), ("b", "f4")])
    with pytest.raises(ri.ConfigError, match=r"'pairs' in .* holds .*, which cannot be batched"):
        batch(ri.read_hdf5(path), 1)
    with pytest.raises(ri.ConfigError, match=r"differ in length: .*'means': 2"):
        batch(ri.read_hdf5(path, fields=["x", "means"]), 1)
    with pytest.raises(
        ri.ConfigError,
        match=r"no dataset 'z' with rows; there are 'means', 'pairs', 'x', 'y'",
    ):
        batch(ri.read_hdf5(path, fields=["x", "z"]), 1)
    assert batch(ri.read_hdf5(path, fields=["y"]), 4)["y"].tolist() == [0, 1, 2, 3]


def test_blocks_are_whole_chunks_of_the_file(path: Path) -> None:
    """Nothing is decompressed twice; a block has at least the requested bytes, if possible."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros((100, 8)), chunks=(7, 8), compression="gzip")
    shard = Shard(Storage(), str(path), path.stat().st_size)
    assert get_format("hdf5").index(shard, 1).samples.tolist() == [7] * 14 + [2]
    assert get_format("hdf5").index(shard, 20 * 64).samples.tolist() == [14] * 7 + [2]


def test_damage_is_an_error_that_names_the_file(path: Path) -> None:
    """With checksums of chunks, damage anywhere in them is an error."""
    with h5py.File(path, "w") as file:
        x = file.create_dataset(
            "x", data=np.random.default_rng(0).random((64, 8)), chunks=(64, 8), fletcher32=True
        )
        assert x.id.get_num_chunks() == 1
        begin = x.id.get_chunk_info(0).byte_offset
    whole = path.read_bytes()
    for at in (begin, begin + 1000, begin + 4000):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ri.DataError, match="damaged HDF5") as caught:
            batch(ri.read_hdf5(path), 64)
        assert caught.value.shard == str(path)
    path.write_bytes(b"no HDF5".ljust(4096))
    with pytest.raises(ri.DataError, match="damaged HDF5 file, or not HDF5"):
        batch(ri.read_hdf5(path), 1)


def test_failures_of_storage_stay_what_they_are(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage failure is not taken for damage, which may be skipped."""
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(1000)
    data = path.read_bytes()
    import fsspec

    fsspec.filesystem("memory").pipe_file("/hdf5/s.h5", data)
    with ri.read_hdf5("memory://hdf5/s.h5").batch(1000).loader(workers=0) as loader:

        def fail(self: Any, url: str, *_: Any, **__: Any) -> list[bytes]:
            raise ri.DataError("no answer", shard=url, transient=True)

        monkeypatch.setattr(Storage, "read_unchecked", fail)
        with pytest.raises(ri.DataError, match="no answer") as caught:
            next(iter(loader))
    assert caught.value.transient


def test_what_is_missing_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a missing h5py names the extra to install."""
    path.write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(
        ri.ConfigError, match=r"reading HDF5 needs 'h5py': pip install 'rayingest\[hdf5\]'"
    ):
        batch(ri.read_hdf5(path), 1)
