"""Samples have the fields of their kind of block, each decoded once."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from rayingest.errors import ConfigError, DataError
from rayingest.transforms import images
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Map, Select
from tests.support.transform_cases import (
    arguments,
    block,
    jpeg,
    run,
    run_pipeline,
    run_with_schema,
    shard,
)


def test_fields_of_a_shard_are_decoded_by_extension():
    """Without stages every member is decoded, the key is a field, and no other is added."""
    columns = run([], shard())
    assert list(columns) == ["__key__", "jpg", "cls", "json"]
    assert columns["__key__"] == ["k0", "k1", "k2", "k3"]
    assert (columns["jpg"].dtype, columns["jpg"].shape) == (np.uint8, (4, 40, 50, 3))
    assert (columns["cls"].dtype, columns["cls"].tolist()) == (np.int64, [0, 1, 2, 3])
    assert columns["json"] == [{"i": i} for i in range(4)]


def test_select_projects_renames_and_decodes_by_the_original_name():
    """Only selected fields are read; one member may have two names."""
    select = Select({"label": "cls", "name": "__key__", "again": "cls"})
    columns = run([select], shard())
    assert list(columns) == ["label", "name", "again"]
    assert columns["label"].tolist() == columns["again"].tolist() == [0, 1, 2, 3]
    assert columns["name"] == ["k0", "k1", "k2", "k3"]
    assert Pipeline((select,), 0).columns == ("cls", "__key__")
    assert Pipeline((Decode({"cls": int}), select), 0).columns is None
    projected = shard().select(["__offset__", "cls", "__key__"])
    assert run([select], projected)["label"].tolist() == [0, 1, 2, 3]


def test_decode_replaces_the_default_and_chains():
    """The first decoder gets raw bytes, the second its result, by the name at that stage."""
    stages = [
        Decode({"cls": bytes}),
        Select({"label": "cls"}),
        Decode({"label": lambda value: value + b"!"}),
    ]
    assert run(stages, shard())["label"] == [b"0!", b"1!", b"2!", b"3!"]
    assert run([Decode({"cls": str})], shard())["cls"] == ["0", "1", "2", "3"]


def test_every_field_is_decoded_once_before_the_first_map():
    """Maps get decoded fields; later stages get the values and names that they left."""
    seen = []

    def check(sample):
        seen.append({name: type(value) for name, value in sample.items()})
        return {**sample, "double": sample["cls"] * 2}

    stages = [Map(check), Decode({"double": lambda v: v + 1}), Select({"x": "double", "y": "json"})]
    pipeline = Pipeline(stages, 0)
    columns = run_pipeline(pipeline, shard())
    assert seen == [{"__key__": str, "jpg": np.ndarray, "cls": int, "json": dict}] * 4
    assert columns["x"].tolist() == [1, 3, 5, 7]
    assert columns["y"] == [{"i": i} for i in range(4)]


def test_pickled_members_are_refused_unless_read_as_bytes():
    """ConfigError passes unchanged; `.decode(pkl=bytes)` works, and so does leaving it out."""
    table = block(KEY=["a"], pkl=[b"x"], cls=[b"1"])
    with pytest.raises(ConfigError, match=r"\.decode\(pkl=bytes\)"):
        run([], table)
    assert run([Decode({"pkl": bytes})], table)["pkl"] == [b"x"]
    assert run([Select({"cls": "cls"})], table)["cls"].tolist() == [1]


def test_members_that_a_sample_lacks():
    """A map may fill in an absent member; else collating is an error that names the sample."""
    table = block(KEY=["a", "b"], cls=[b"1", b"2"], txt=pa.array([b"t", None], pa.binary()))
    filled = run([Map(lambda sample: {"txt": "none", **sample})], table)
    assert filled["txt"] == ["t", "none"]
    with pytest.raises(DataError, match="'txt' is missing") as caught:
        run_with_schema([], table)
    assert (caught.value.sample, caught.value.key) == (101, "b")
    empty = block(KEY=["a"], cls=[b"1"], txt=pa.array([None], pa.binary()))
    with pytest.raises(DataError, match="'text' is missing"):
        run([Select({"text": "txt"})], empty)


@pytest.mark.parametrize(
    "stages",
    [
        [Select({"x": "jpeg"})],
        [Decode({"jpeg": bytes})],
        [Select({"x": "cls"}), Decode({"cls": int})],
        [Map(lambda s: s), Select({"x": "jpeg"})],
        [Map(lambda s: s), Decode({"jpeg": bytes})],
    ],
)
def test_unknown_fields_are_refused_with_those_there_are(stages):
    """ConfigError names the stage, the field and the fields there are."""
    with pytest.raises(
        ConfigError, match=r"(select|decode): there is no field '(jpeg|cls)'; there are .*'(jpg|x)'"
    ):
        run_with_schema(stages, shard())


def test_json_lines():
    """A line's items are the fields, with their JSON types; `select` works as anywhere."""
    lines = [
        json.dumps({"id": i, "cls": "a", "tokens": [i] * i, "w": i / 2}).encode() for i in range(3)
    ]
    table = block(JSON=pa.array(lines, pa.binary()))
    columns = run([], table)
    assert columns["id"].tolist() == [0, 1, 2]
    assert columns["cls"] == ["a"] * 3
    assert columns["tokens"].tolist() == [[0, 0], [1, 0], [2, 2]]
    assert columns["tokens_length"].tolist() == [0, 1, 2]
    stages = [Select({"t": "tokens", "n": "id"}), Decode({"t": sum})]
    assert {name: column.tolist() for name, column in run(stages, table).items()} == {
        "t": [0, 1, 4],
        "n": [0, 1, 2],
    }
    with pytest.raises(ConfigError, match=r"no field 'nope'; there are 'id', 'cls', 'tokens', 'w'"):
        run_with_schema([Select({"x": "nope"})], table)


@pytest.mark.parametrize("line", [b"{", b"[1]", b"\xff"])
def test_lines_that_are_not_json_objects(line):
    """DataError names shard, offset and sample."""
    with pytest.raises(DataError, match="read: ") as caught:
        run([], block(JSON=pa.array([b"{}", line], pa.binary())))
    assert (caught.value.shard, caught.value.offset, caught.value.sample) == (
        "mem://data/a.tar",
        10,
        101,
    )


def test_parquet_values_by_type():
    """Numbers keep their dtype, lists are arrays, fixed-size lists have no lengths."""
    table = block(
        i64=pa.array([1, 2], pa.int64()),
        i16=pa.array([1, 2], pa.int16()),
        f32=pa.array([0.5, 1], pa.float32()),
        flag=[True, False],
        name=["a", "b"],
        raw=pa.array([b"\x00", b"\x01"], pa.binary()),
        cls=pa.array([b"1", b"2"], pa.binary()),
        ids=pa.array([[1, 2, 3], []], pa.list_(pa.int32())),
        big=pa.array([[1.5], [2.5, 3]], pa.large_list(pa.float64())),
        bits=pa.array([[True], [False, True]], pa.list_(pa.bool_())),
        box=pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
        words=pa.array([["a"], ["b", "c"]]),
        record=pa.array([{"a": 1, "b": [2]}, {"a": 3, "b": []}]),
        kind=pa.array(["x", "y"]).dictionary_encode(),
    )
    columns = run([], table)
    dtypes = {
        name: column.dtype.name
        for name, column in columns.items()
        if isinstance(column, np.ndarray)
    }
    assert dtypes == {
        "i64": "int64",
        "i16": "int16",
        "f32": "float32",
        "flag": "bool",
        "ids": "int32",
        "ids_length": "int64",
        "big": "float64",
        "big_length": "int64",
        "bits": "bool",
        "bits_length": "int64",
        "box": "float32",
    }
    assert columns["ids"].tolist() == [[1, 2, 3], [0, 0, 0]]
    assert columns["bits"].tolist() == [[True, False], [False, True]]
    assert columns["box"].tolist() == [[1, 2], [3, 4]]
    assert columns["raw"] == [b"\x00", b"\x01"]
    assert columns["cls"] == [b"1", b"2"]
    assert columns["words"] == [["a"], ["b", "c"]]
    assert columns["record"] == [{"a": 1, "b": [2]}, {"a": 3, "b": []}]
    assert columns["kind"] == ["x", "y"]
    assert run([Select({"b": "box"}), Map(lambda s: s), Select({"c": "b"})], table)["c"].shape == (
        2,
        2,
    )
    assert list(run([Select({"x": "i64"}), Decode({"x": lambda v: [v] * v})], table)) == [
        "x",
        "x_length",
    ]


def test_parquet_values_are_the_users_own():
    """Arrays are writable, and do not keep the block alive."""
    table = block(ids=pa.array([[1, 2], [3]], pa.list_(pa.int64())))
    samples = Pipeline((), 0).run_samples(*arguments([table]), 0)
    samples[0]["ids"][0] = 9
    assert samples[0]["ids"].base is None
    assert table.column("ids")[0].as_py() == [1, 2]


def test_parquet_nulls():
    """A null value is None, which a map can fill in; a null inside a list of numbers is refused."""
    table = block(a=pa.array([1, None], pa.int16()), b=pa.array([None, [1]], pa.list_(pa.int64())))
    samples = Pipeline((), 0).run_samples(*arguments([table]), 0)
    assert [sample["a"] for sample in samples] == [1, None]
    assert isinstance(samples[0]["a"], np.int16)
    assert samples[0]["b"] is None
    with pytest.raises(
        DataError, match="'a' is null here, and int16 in the first samples"
    ) as caught:
        run_with_schema([Select({"a": "a"})], table)
    assert (caught.value.sample, caught.value.offset) == (101, 10)
    assert run([Map(lambda s: {"a": s["a"] or 0})], table)["a"].tolist() == [1, 0]
    with pytest.raises(DataError, match="'c' has a null inside") as caught:
        run([], block(c=pa.array([[1], [2, None]], pa.list_(pa.int64()))))
    assert (caught.value.sample, caught.value.offset) == (101, 10)


def test_parquet_binary_columns_named_like_images_are_decoded():
    """A column of bytes is decoded only if its name ends in an image's or text's extension."""
    table = block(
        **{"left.jpg": [jpeg(0)], "txt": pa.array([b"t"], pa.binary()), "image": [jpeg(0)]}
    )
    columns = run([], table)
    assert columns["left.jpg"].shape == (1, 40, 50, 3)
    assert columns["txt"] == ["t"]
    assert columns["image"] == [jpeg(0)]
    assert run([Decode({"image": images.Resize((8, 8))})], table)["image"].shape == (1, 8, 8, 3)
