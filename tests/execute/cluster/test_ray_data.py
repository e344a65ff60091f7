"""Ray Datasets in and out: rows are written once; samples are those of a loader."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import rayingest as ri
from tests.support.streams import images, run

ROWS = 60


@pytest.fixture(autouse=True)
def quiet(cluster: Any) -> Iterator[Any]:
    """Ray Data without log lines."""
    import ray.data

    context, log = ray.data.DataContext.get_current(), logging.getLogger("ray.data")
    before = context.enable_progress_bars, log.level
    context.enable_progress_bars = False
    log.setLevel("ERROR")
    yield
    context.enable_progress_bars = before[0]
    log.setLevel(before[1])


def row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of many types."""
    i = int(row["id"])
    return {
        "id": i,
        "text": f"t{i}",
        "image": np.full((2, 3), i, np.uint8),
        "flags": np.array([i % 2 == 0, True]),
        "ragged": np.arange(i % 4, dtype=np.int16),
    }


def fail(row: dict[str, Any]) -> dict[str, Any]:
    """A function for a dataset that must not be executed."""
    raise RuntimeError("this was executed")


def test_rows_are_written_once(tmp_path: Path) -> None:
    """In their order and types. Later only the files count, and failed attempts leave none."""
    import ray.data

    rows = ray.data.range(ROWS, override_num_blocks=4)
    with pytest.raises(Exception, match="this was executed"):
        ri.from_ray(rows.map(fail), tmp_path / "rows")
    assert list((tmp_path / "rows").iterdir()) == []
    ri.from_ray(rows.map(row), tmp_path / "run=3")
    data = ri.from_ray(rows.map(fail), tmp_path / "run=3")
    with data.batch(ROWS).loader(workers=0) as loader:
        batch = next(iter(loader))
    assert batch["id"].tolist() == batch["__index__"].tolist() == [*range(ROWS)]
    assert "run" not in batch, "the folders of the path are no columns"
    assert batch["text"] == [f"t{i}" for i in range(ROWS)]
    assert batch["image"].numpy().tolist() == [[[i] * 3] * 2 for i in range(ROWS)]
    assert batch["flags"].numpy().tolist() == [[i % 2 == 0, True] for i in range(ROWS)]
    assert batch["ragged_length"].tolist() == [i % 4 for i in range(ROWS)]
    assert {str(batch[name].dtype) for name in ("image", "flags", "ragged")} == {
        "torch.uint8",
        "torch.bool",
        "torch.int16",
    }


def test_datasets_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    """A dataset without rows, one of Python objects, and anything else."""
    import ray.data

    with pytest.raises(ri.ConfigError, match="has no rows"):
        ri.from_ray(ray.data.range(0), tmp_path)
    with pytest.raises(ri.ConfigError, match="'x' holds Python objects"):
        ri.from_ray(ray.data.range(1).map(lambda row: {"x": object}), tmp_path)
    with pytest.raises(ri.ConfigError, match="a Ray Dataset"):
        ri.from_ray([{"a": 1}], tmp_path)


def test_samples_are_those_of_a_loader(shards: str) -> None:
    """Each once, by ordinal, with the random numbers of an epoch; errors name the sample."""
    data = images(shards, 10, partial="short", choose=lambda data: data.take(40))
    with data.loader(workers=0) as loader:
        loader.set_epoch(2)
        seen = {
            int(i): noise
            for batch in loader
            for i, noise in zip(batch["__index__"], batch["noise"], strict=True)
        }
    made = {one["__index__"]: one["noise"] for one in data.to_ray(epoch=2).take_all()}
    assert made.keys() == seen.keys() == {*range(40)}
    assert all(np.array_equal(made[i], seen[i].numpy()) for i in made)


def test_nulls_stay_nulls(tmp_path: Path) -> None:
    """Rows are not batched, which nulls would prevent."""
    values = {
        "n": [1, None, 3],
        "x": [None, 0.5, 1.5],
        "list": [[1, 2], None, []],
        "text": [None, "b", None],
    }
    pq.write_table(pa.table(values), tmp_path / "s.parquet")
    rows = sorted(ri.read_parquet(tmp_path).to_ray().take_all(), key=lambda one: one["__index__"])
    assert [
        [None if one[name] is None else np.asarray(one[name]).tolist() for one in rows]
        for name in values
    ] == [*values.values()]


def test_items_are_made_in_pieces() -> None:
    """A dataset of one block is split; a sampler's order does not apply to Ray Data."""
    data = ri.from_torch(range(200))
    assert sorted(one["0"] for one in data.to_ray().take_all()) == [*range(200)]
    assert run(data.batch(200))[0]
    with pytest.raises(ri.ConfigError, match="to_ray"):
        ri.from_torch(range(3), sampler=[1]).to_ray()
