"""NumPy's files: what a row becomes, and which arrays are refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset


def batch(data: Dataset, size: int) -> dict[str, Any]:
    with data.batch(size).loader(workers=0) as loader:
        found: dict[str, Any] = next(iter(loader))
        return found


@pytest.mark.parametrize("dtype", ["?", "i1", "u4", ">i8", "f2", "f4", "f8", "c8"])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 3)])
def test_rows_keep_their_numbers(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """Holds for any dtype and byte order; 1-D rows are not padded."""
    array = (np.arange(np.prod(shape)).reshape(shape) % 7).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    found = batch(ri.read_npy(tmp_path, block_bytes=1), 5)
    assert np.array_equal(found["array"], array)
    wide = {
        "i1": "int8",
        "u4": "uint32",
        ">i8": "int64",
        "f2": "float16",
        "f4": "float32",
        "f8": "float64",
        "c8": "complex64",
    }
    assert str(found["array"].dtype) == f"torch.{wide.get(dtype, 'bool')}"
    assert "array_length" not in found


def test_text_is_text_and_files_may_be_remote_or_many(tmp_path: Path) -> None:
    """Arrays of an archive are fields, in its order; unwanted ones are not read."""
    for i in range(2):
        np.savez(
            tmp_path / f"{i}.npz",
            name=np.array([f"n{i}", "longer"]),
            x=np.full((2, 2), i),
            y=np.zeros(2),
        )
    found = batch(ri.read_npy(tmp_path).select(name="name", x="x"), 4)
    assert found["name"] == ["n0", "longer", "n1", "longer"]
    assert found["x"].tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    """Objects, structures, Fortran order, no rows and different lengths are errors."""
    path = tmp_path / "a.npy"
    cases = {
        "arrays of objects": np.array([{}], object),
        "structures are not supported": np.zeros(3, [("a", "i4")]),
        "Fortran order": np.asfortranarray(np.zeros((3, 4))),
        "no rows": np.array(3),
        "array in .* holds datetime64": np.zeros(3, "M8[s]"),
        "array in .* holds float128": np.zeros(3, np.longdouble),
        "are empty: their shape": np.zeros((3, 0)),
    }
    for said, array in cases.items():
        np.save(path, array)
        with pytest.raises(ri.ConfigError, match=said):
            batch(ri.read_npy(path), 1)
    np.save(path, np.zeros((0, 3)))
    with pytest.raises(ri.ConfigError, match="no sample in any"):
        batch(ri.read_npy(path), 1)
    np.savez(tmp_path / "a.npz", a=np.zeros(3), b=np.zeros(4))
    with pytest.raises(ri.ConfigError, match=r"differ in length: \{'a': 3, 'b': 4\}"):
        batch(ri.read_npy(tmp_path / "a.npz"), 1)


def test_archives_that_unfold_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger `max_expansion` accepts them."""
    monkeypatch.setattr("rayingest.formats.compression._ALWAYS_ALLOWED", 1 << 10)
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros((100, 10_000)))
    with pytest.raises(ri.DataError, match="give a larger max_expansion"):
        batch(ri.read_npy(tmp_path), 1)
    assert batch(ri.read_npy(tmp_path, max_expansion=10_000), 100)["a"].shape == (100, 10_000)


def test_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Damaged headers are errors; array contents have a checksum only if compressed."""
    target = io.BytesIO()
    np.savez_compressed(target, a=np.random.default_rng(0).random((20, 8)))
    whole, path = target.getvalue(), tmp_path / "a.npz"
    errors = 0
    for at in range(0, len(whole), 23):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            assert batch(ri.read_npy(path, index=tmp_path / "index"), 20)["a"].shape == (20, 8)
        except (ri.DataError, ri.ConfigError):
            errors += 1
    assert errors > 30
