"""Lance: versions, and deleted rows."""

from __future__ import annotations

import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset


def ids(data: Dataset) -> list[int]:
    with data.batch(4, partial="short").loader(workers=0) as loader:
        return [i for batch in loader for i in batch["id"].tolist()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Version 1 has 0 to 9, version 2 is without 3, version 3 has 10 and 11 too."""
    path = tmp_path / "x.lance"
    data = lance.write_dataset(
        pa.table({"id": range(10), "text": ["a"] * 10}), path, max_rows_per_file=4
    )
    data.delete("id = 3")
    lance.write_dataset(pa.table({"id": [10, 11], "text": ["b"] * 2}), path, mode="append")
    return path


def test_the_last_version_is_read_or_the_one_asked_for(path: Path) -> None:
    """Deleted rows are left out; the error for a missing version lists those that exist."""
    assert ids(ri.read_lance(path)) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert ids(ri.read_lance(path.parent, version=1)) == list(range(10))
    with pytest.raises(ri.ConfigError, match="does not have this version; it has 1, 2, 3"):
        ids(ri.read_lance(path, version=4))


def test_what_is_committed_while_a_run_goes_on_is_no_part_of_it(path: Path) -> None:
    """A resumed run reads its version if `version` names it; else its state is refused."""
    data = ri.read_lance(path, block_bytes=1).shuffle(seed=1).batch(2)
    with data.loader(workers=0, max_bytes=1) as loader:
        batches = iter(loader)
        first, state = next(batches)["id"].tolist(), loader.state_dict()
        lance.dataset(path).delete("id > 4")
        rest = [i for batch in batches for i in batch["id"].tolist()]
    assert len({*first, *rest}) == 10
    with (
        ri.read_lance(path, block_bytes=1, version=3)
        .shuffle(seed=1)
        .batch(2)
        .loader(workers=0) as loader
    ):
        loader.load_state_dict(state)
        assert [i for batch in loader for i in batch["id"].tolist()] == rest
    with data.loader(workers=0) as loader, pytest.raises(ri.StateError):
        loader.load_state_dict(state)


def test_a_folder_of_something_else_and_a_missing_library_are_errors(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is one error; the latter names the extra to install."""
    (path.parent / "y").mkdir()
    (path.parent / "y" / "a.manifest").write_bytes(b"")
    with pytest.raises(ri.ConfigError, match="there is no Lance dataset"):
        ids(ri.read_lance(path.parent / "y"))
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(ri.ConfigError, match=r"pip install 'rayingest\[lance\]'"):
        ids(ri.read_lance(path, version=2))
