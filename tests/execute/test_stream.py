"""The joint of plan and data: errors name what is missing, where, and what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rayingest as ri
from rayingest.api.data import description_of
from rayingest.api.dataset import Dataset
from rayingest.execute.stream import ManifestStream, heads_of
from rayingest.plan.order.subset import Subset
from tests.support.plan_cases import uniform
from tests.support.streams import write_shards


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Dataset]:
    """Ten samples in each format: fields `json` and `png` in tars, `i` and `x` elsewhere."""
    write_shards(tmp_path / "tars", [10])
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"i": i, "x": 1.5}) + "\n" for i in range(10))
    )
    pq.write_table(pa.table({"i": list(range(10)), "x": [1.5] * 10}), tmp_path / "a.parquet")
    return {
        "webdataset": ri.read_webdataset(tmp_path / "tars"),
        "json": ri.read_json(tmp_path / "a.jsonl"),
        "parquet": ri.read_parquet(tmp_path / "a.parquet"),
    }


def first(data: Dataset) -> dict[str, Any]:
    """Return the first batch."""
    with data.batch(4).loader(workers=0) as loader:
        batch: dict[str, Any] = next(iter(loader))
    return batch


@pytest.mark.parametrize(
    ("name", "shard", "there"),
    [
        ("webdataset", "tars/s-0000.tar", "'__key__', 'json', 'png'"),
        ("json", "a.jsonl", "'i', 'x'"),
        ("parquet", "a.parquet", "'i', 'x'"),
    ],
)
def test_an_absent_field_is_named_with_those_that_exist(
    sources: dict[str, Dataset], name: str, shard: str, there: str
) -> None:
    """By its name in the data and with its shard, also if no other field is read."""
    there_is = "json" if name == "webdataset" else "i"
    for data in (sources[name].select(t="nope"), sources[name].select(a=there_is, t="nope")):
        with pytest.raises(ri.IngestError) as caught:
            first(data)
        told = str(caught.value)
        assert [words for words in ("'nope'", shard, there) if words not in told] == []
    with pytest.raises(
        ri.ConfigError, match=f"no field 'nope'; there are {there}.*{shard}, offset 0"
    ):
        first(sources[name].decode(nope=str))


def test_a_field_that_some_samples_have_is_not_called_absent(tmp_path: Path) -> None:
    """The error names the sample alone."""
    write_shards(tmp_path, [10])
    data = (
        ri.read_webdataset(tmp_path)
        .select(i="json", image="png")
        .map(lambda sample: {"i": sample["none"]})
    )
    with pytest.raises(ri.DataError, match=r"KeyError: 'none'") as caught:
        first(data)
    assert "no sample in its block" not in str(caught.value)


def test_schema_blocks_are_the_first_ones_and_some_of_the_rest() -> None:
    """The first blocks are the same with and without `spread`; small data has fewer."""
    for count in (1, 4, 5, 9, 12, 13, 1000):
        subset = Subset.whole(uniform(count, 100, 1))
        ordinals = [rows.ordinals.tolist() for _, rows in heads_of(subset, spread=True)]
        assert ordinals[:4] == [rows.ordinals.tolist() for _, rows in heads_of(subset)]
        blocks = [each[0] // 100 for each in ordinals]
        assert blocks[:4] == list(range(min(count, 4)))
        assert blocks == sorted(set(blocks))
        assert len(blocks) == min(count, 12)
    assert blocks[4:] == [66, 190, 315, 439, 564, 688, 813, 937]


def test_names_of_the_loaders_own_columns_are_refused(sources: dict[str, Dataset]) -> None:
    """`select` refuses them at once, and a batch does when a function gives them."""
    for name in ("__index__", "__valid__"):
        with pytest.raises(ri.ConfigError, match=f"name '{name}' is reserved for a column"):
            sources["json"].select(**{name: "i"})

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {"__index__": [sample["i"] for sample in samples]}

    data = sources["json"].batch(4, collate=collate)
    with (
        data.loader(workers=0) as loader,
        pytest.raises(ri.ConfigError, match="collate gave a field '__index__'"),
    ):
        next(iter(loader))


def test_the_offset_of_a_block_is_called_so(sources: dict[str, Dataset], tmp_path: Path) -> None:
    """Where only the sample is known, for example after it ended its worker."""
    data = sources["json"].batch(4)
    with data.loader(workers=0):
        description = description_of(data)
        scan = description.scan(0, on_ray=False)
    planner = description.build_planner(scan, 0, 1, uneven=False)
    work = description.work
    stream = ManifestStream(planner, work, flag_valid=False, manifest=scan.manifest)
    samples = planner.step_samples(0, 1)
    error = stream.locate(ri.DataError("it ended its worker"), samples, 2)
    assert str(error) == (
        "it ended its worker; the offset is that of its block "
        f"[shard {tmp_path}/a.jsonl, offset 0, sample 6]"
    )
    known = ri.DataError("no JSON", offset=60)
    assert stream.locate(known, samples, 2).reason == "no JSON"
