"""The format of docs/add_a_format.md works as the page says, and as well as the package's own."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayingest as ri
from rayingest import formats
from rayingest.api.dataset import Dataset
from rayingest.errors import ConfigError
from tests.formats import test_every_format
from tests.support.format_cases import Part, arrays, of_array, one_file_each

PAGE = Path(__file__).parents[2] / "docs/add_a_format.md"


def idx(part: Part) -> bytes:
    """The id and the text of each sample as a row of bytes."""
    columns = arrays(part)
    rows = np.concatenate([columns["id"].astype(np.uint8)[:, None], columns["text"]], axis=1)
    return struct.pack(">HBBII", 0, 8, 2, *rows.shape) + rows.tobytes()


def read(folder: str) -> Dataset:
    return ri.read_format("idx", folder, block_bytes=2000).map(of_array)


CASE = one_file_each("s-{}.idx", idx, read)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's code defines, once it has run in an empty folder."""
    (tmp_path / "page").mkdir()
    monkeypatch.chdir(tmp_path / "page")
    monkeypatch.setattr(formats, "FORMATS", dict(formats.FORMATS))
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text()):
        exec(compile(block, PAGE.name, "exec"), names)
    return names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    CASE.write(folder)
    return folder


@pytest.mark.parametrize(
    "hold",
    [
        test_every_format.test_every_sample_is_read_in_order,
        test_every_format.test_a_run_is_resumed_at_any_step_on_any_ranks,
        test_every_format.test_a_shard_that_is_cut_is_an_error,
        test_every_format.test_a_flipped_bit_is_an_error_or_another_value,
    ],
)
def test_what_holds_for_every_format_holds_for_it(page: Any, folder: Path, hold: Any) -> None:
    """It is read whole and in order, resumed at every step, and damage is an error."""
    hold(CASE, folder)


def test_workers_read_it_without_registering_it(page: Any, folder: Path, pool_of_1: Any) -> None:
    """The stream through Ray is the one of a single process, indexed by the cluster."""
    data = read(str(folder)).shuffle(seed=3)
    with data.batch(8).loader(pool=pool_of_1) as loader:
        assert [row for batch in loader for row in test_every_format.rows(batch)] == (
            test_every_format.read(data)
        )


def test_a_name_belongs_to_one_format(page: Any) -> None:
    """The same class may register again; another class with its name may not."""
    formats.register_format(page["Idx"]())
    other = type("Other", (page["Idx"],), {"name": "parquet"})
    with pytest.raises(ConfigError, match="'parquet' exists already"):
        formats.register_format(other())


def test_what_is_wrong_is_named_when_the_reader_is_called(page: Any) -> None:
    """A format that is not registered, and an option that it does not know."""
    with pytest.raises(ConfigError, match=r"unknown format 'qoa'.*register_format"):
        ri.read_format("qoa", "x")
    with pytest.raises(ConfigError, match=r"unknown option 'rows' for format 'idx'"):
        ri.read_format("idx", "x", options={"rows": 1})


def test_the_page_is_short() -> None:
    """A format fits on a page."""
    assert len(PAGE.read_text().splitlines()) < 100
