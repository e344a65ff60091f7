"""Filters: evaluated once, kept beside the index, made again when data or code changes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rayingest as ri
from rayingest.api.data import description_of
from rayingest.api.dataset import Dataset
from rayingest.build import statistic
from tests.support.streams import write_shards


def lines(folder: Path, count: int = 40) -> str:
    """Write JSON Lines of {"i": i, "n": i % 7} into two files."""
    for part in (0, 1):
        rows = [{"i": i, "n": i % 7} for i in range(part * count // 2, (part + 1) * count // 2)]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def seen(data: Dataset) -> list[int]:
    with data.batch(4, partial="short").loader(workers=0) as loader:
        return [i for batch in loader for i in batch["__index__"].tolist()]


def is_even(sample: dict[str, Any]) -> bool:
    return sample["i"] % 2 == 0


def test_filters_and_limits_follow_each_other(tmp_path: Path) -> None:
    """Each applies to the samples that the earlier ones left; ordinals count all samples."""
    data = ri.read_json(lines(tmp_path), index=tmp_path / "index", block_bytes=64)
    assert seen(data.where("n < 3")) == [i for i in range(40) if i % 7 < 3]
    assert seen(data.filter(is_even).skip(2).take(5)) == [4, 6, 8, 10, 12]
    assert seen(data.skip(2).take(5).filter(is_even)) == [2, 4, 6]
    both = seen(data.where("n < 3").filter(is_even).shuffle(seed=1))
    assert sorted(both) == [i for i in range(40) if i % 7 < 3 and i % 2 == 0]


def test_only_the_fields_of_the_expression_are_read(tmp_path: Path) -> None:
    """No image is read for an expression of another field, whatever the stages do to it."""
    data = ri.read_webdataset(write_shards(tmp_path / "shards", [30])).select(
        image="png", info="json"
    )
    filtered = data.decode(image=ri.images.RandomResizedCrop(8)).where('info["i"] % 3 == 0')
    description = description_of(filtered)
    limit: Any = description.limits[0]
    scan = statistic.StatisticScan(limit, *_manifest(filtered), description.work)
    parts: list[Any] = scan.parts()
    assert all(part.args[0].pipeline.columns == ("json",) for part in parts)
    assert np.flatnonzero(scan.join([part() for part in scan.parts()])).tolist() == list(
        range(0, 30, 3)
    )


def _manifest(data: Dataset) -> Sequence[Any]:
    with data.batch(1).loader(workers=0):
        cache = description_of(data).source.index_cache()
        return cache.load(), cache


def test_parquet_columns(tmp_path: Path) -> None:
    """Nulls can be compared by `is None`; any other comparison names the sample."""
    pq.write_table(
        pa.table({"w": [1, None, 3, 4], "x": [1.0, 2.0, 3.0, 4.0]}), tmp_path / "a.parquet"
    )
    data = ri.read_parquet(str(tmp_path / "a.parquet"))
    assert seen(data.where("w is not None and w > 1").select(x="x")) == [2, 3]
    with pytest.raises(ri.DataError, match=r"where\(w > 1\).*sample 1"):
        seen(data.where("w > 1"))


CALLS = 0


def counted(sample: dict[str, Any]) -> bool:
    global CALLS  # noqa: PLW0603 - what the test counts
    CALLS += 1
    return bool(sample["n"] < 3)


def test_a_filter_runs_once_until_the_data_change(tmp_path: Path) -> None:
    """Results are cached beside the index, and made again when a shard is written again."""
    (tmp_path / "data").mkdir()
    data = ri.read_json(lines(tmp_path / "data"), index=tmp_path / "index").filter(counted)
    (tmp_path / "index").mkdir()
    first = seen(data)
    assert seen(data) == first
    assert CALLS == 40
    assert len(list((tmp_path / "index").iterdir())) == 2
    shard = tmp_path / "data" / "0.jsonl"
    shard.write_text(shard.read_text().replace('"n": 0', '"n": 9'))
    later = shard.stat().st_mtime_ns + 10**9
    os.utime(shard, ns=(later, later))
    assert seen(data) == [i for i in first if not (i < 20 and i % 7 == 0)]
    assert CALLS == 80


def test_lengths_are_those_of_a_field_or_a_function(tmp_path: Path) -> None:
    """A length is `len`, a number, or a function's result; any other value names the sample."""
    rows = [{"words": ["a"] * (i % 5), "n": i, "real": 0.5} for i in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ri.read_json(
        str(tmp_path / "a.jsonl"), index=tmp_path / "index", block_bytes=100
    ).shuffle(seed=1)

    def lengths(data: Dataset) -> list[int]:
        bucketed = data.batch(5, bucketed=True)
        found = description_of(bucketed).scan(0, on_ray=False).lengths
        assert found is not None
        return found.tolist()

    assert lengths(data.length("words")) == [i % 5 for i in range(30)]
    assert lengths(data.length("n")) == list(range(30))
    assert lengths(data.length(lambda sample: 300 + sample["n"])) == list(range(300, 330))
    with pytest.raises(ri.DataError, match=r"length\(real\) gave 0.5.*sample 0"):
        lengths(data.length("real"))


def test_buckets_need_lengths_and_a_shuffle(tmp_path: Path) -> None:
    """The error names the one that is missing."""
    data = ri.read_json(lines(tmp_path)).batch(4, bucketed=True)
    with pytest.raises(ri.ConfigError, match=r"needs \.length"):
        data.shuffle(seed=1).loader(workers=0)
    with pytest.raises(ri.ConfigError, match=r"needs \.shuffle"):
        data.length("n").loader(workers=0)


def test_impossible_filters_are_refused(tmp_path: Path) -> None:
    """Random stages before it, results of another type, nothing left, a missing field."""
    data = ri.read_json(lines(tmp_path))
    with pytest.raises(ri.ConfigError, match=r"filter\(is_even\) comes after map .*random"):
        data.map(lambda sample, rng: sample).filter(is_even)
    with pytest.raises(ri.DataError, match="must say True or False"):
        seen(data.filter(lambda sample: 3))
    with pytest.raises(
        ri.ConfigError, match="already a part of a split with seed=0; give another seed"
    ):
        data.split(0.5, 0.5)[0].split(0.5, 0.5)
    assert len(data.split(0.5, 0.5)[0].split(0.5, 0.5, seed=1)) == 2
    with pytest.raises(
        ri.ConfigError, match=r"no sample is left: where\(n > 9\) .*removes all 40 samples"
    ):
        seen(data.where("n > 9"))
    with pytest.raises(ri.DataError, match="no field 'm'"):
        seen(data.where("m > 9"))
    with pytest.raises(ri.ConfigError, match="expression=3"):
        data.where(3)  # type: ignore[arg-type]
