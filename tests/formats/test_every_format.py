"""Rules for every format: data of its own library is read whole and in order; cuts are found."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rayingest.api.data import description_of
from rayingest.api.dataset import Dataset
from rayingest.api.readers import READERS
from rayingest.errors import ConfigError, DataError
from rayingest.formats import FORMATS, get_format
from tests.support.format_cases import CASES, Case, read, rows
from tests.support.format_samples import COUNT, SAMPLES


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def folder(case: Case, tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    case.write(folder)
    return folder


def test_every_sample_is_read_in_order(case: Case, folder: Path) -> None:
    """Values and order are right, from local files and from a storage read by ranges."""
    assert read(case.read(str(folder))) == SAMPLES
    if case.trusting:
        return
    fs = fsspec.filesystem("memory")
    for path in folder.rglob("*"):
        if path.is_file():
            fs.pipe_file(f"/every{path}", path.read_bytes())
    copy = case.read(f"memory://every{folder}")
    assert read(copy) == SAMPLES
    assert read(copy.shuffle(seed=1)) == read(case.read(str(folder)).shuffle(seed=1)) != SAMPLES


def test_a_run_is_resumed_at_any_step_on_any_ranks(case: Case, folder: Path) -> None:
    """Steps after a state equal those of a run without a stop, on one rank or two."""
    data = case.read(str(folder)).shuffle(seed=5, window=16).batch(8)
    with data.loader(workers=0) as loader:
        states, steps = [], []
        for batch in loader:
            states.append(json.dumps(loader.state_dict()))
            steps.append(rows(batch))
    assert len(steps) == COUNT // 8
    for step, state in enumerate(states[:-1]):
        ranks = []
        for rank in range(2):
            with data.loader(workers=0, rank=rank, world_size=2) as loader:
                loader.load_state_dict(json.loads(state))
                ranks.append([rows(batch) for batch in loader])
        assert [one + two for one, two in zip(*ranks, strict=True)] == steps[step + 1 :]


def test_a_shard_that_is_cut_is_an_error(case: Case, folder: Path) -> None:
    """A cut before or after indexing is an error that names shard and offset."""
    path = folder / case.shard
    whole = path.read_bytes()
    last = len(whole.rstrip(b"\0\r\n")) - 1  # what is missing behind it may be padding
    for cut in (0, 1, len(whole) // 3, len(whole) // 2, last):
        path.write_bytes(whole)
        with case.read(str(folder)).batch(COUNT).loader(workers=0) as loader:
            path.write_bytes(whole[:cut])
            check_error(lambda loader=loader: list(loader), path)
        if case.cut_is_seen == "always" or (case.cut_is_seen == "not empty" and cut):
            check_error(lambda: read(case.read(str(folder))), path)


def test_a_flipped_bit_is_an_error_or_another_value(case: Case, folder: Path) -> None:
    """A flipped bit never loses samples, and never causes an error without an offset."""
    if case.trusting:
        return
    path = folder / case.shard
    whole, choose = path.read_bytes(), random.Random(2)
    for i in range(18):
        near = choose.randrange(min(len(whole), 64))
        at = (choose.randrange(len(whole)), near, len(whole) - 1 - near)[i % 3]
        path.write_bytes(
            whole[:at] + bytes([whole[at] ^ (1 << choose.randrange(8))]) + whole[at + 1 :]
        )
        try:
            found = read(case.read(str(folder)))
        except ConfigError:
            continue
        except DataError as error:
            found = (
                [(i, "") for i in range(COUNT)]
                if error.shard == str(path) and error.offset is not None
                else []
            )
        assert len(found) == COUNT, at


def check_error(reading: Any, path: Path) -> None:
    with pytest.raises(DataError) as caught:
        reading()
    assert caught.value.shard == str(path)
    assert caught.value.offset is not None


def format_of(data: Dataset) -> str:
    return description_of(data).source.format_name


def test_every_format_has_a_reader_and_a_case(tmp_path: Path) -> None:
    """A new format in the registry has a reader and a test case."""
    of_files = {name for name in FORMATS if get_format(name).suffixes}
    assert {format_of(reader("x")) for reader in READERS.values()} == of_files
    of_cases = {format_of(case.read(str(tmp_path))) for case in CASES.values()}
    assert of_cases == of_files - {"images"}  # as `files`, and tested by its own file
