"""The schema is learned from the first samples, and every sample conforms to it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from rayingest.errors import ConfigError, DataError
from rayingest.transforms.collate import collate
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.schema import LISTED, FieldType, conform, infer_schema
from rayingest.transforms.stages import Map, MapBatches, Select
from tests.support.transform_cases import arguments, block, run_with_schema


def type_of(*values: Any, fixed: bool = False) -> FieldType:
    """Return the type that these values suggest."""
    return infer_schema([{"x": value} for value in values], {"x"} if fixed else ())["x"]


def number(dtype: Any) -> FieldType:
    """Return the type of a column of numbers."""
    return FieldType(np.dtype(dtype))


def padded(dtype: Any) -> FieldType:
    """Return the type of a column of 1-D arrays of any length."""
    return FieldType(np.dtype(dtype), 1, padded=True)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((1, 2), np.int64),
        ((1.5, 2.0), np.float64),
        ((True, False), np.bool_),
        ((1, 2.5), np.float64),
        ((True, 3), np.int64),
        ((np.float32(1), np.float32(2)), np.float32),
        ((np.uint8(1), np.uint8(2)), np.uint8),
        ((np.int8(1), np.array(3, np.int16)), np.int16),
        ((1 << 63, 1), np.float64),
        ((1 << 63, (1 << 64) - 1), np.uint64),
        ((1j, 2), np.complex128),
        ((None, 3), np.int64),
    ],
)
def test_numbers_take_the_smallest_dtype_that_holds_them(
    values: tuple[Any, ...], dtype: Any
) -> None:
    """Python numbers have 64 bits, numpy scalars keep their dtype, mixtures promote."""
    field = type_of(*values)
    assert field == number(dtype)
    given = [value for value in values if value is not None]
    columns = collate([conform({"x": value}, {"x": field}) for value in given], {"x": field})
    assert columns["x"].dtype == dtype
    assert columns["x"].tolist() == [complex(v) if dtype == np.complex128 else v for v in given]


@pytest.mark.parametrize(
    "values",
    [
        ("a", "b"),
        (b"a", b"b"),
        (None, "a"),
        (None, None),
        ({"a": 1}, {"a": [2]}),
        (["a"], ["b", "c"]),
        ([[1], [2]], [[3]]),
        (np.array(["a"]), np.array(["b"])),
        (np.datetime64("2020-01-01"),),
        ([], ["a"]),
        ([None], []),
        ([1, "a"], ["b"]),
    ],
)
def test_everything_else_is_a_list(values: tuple[Any, ...]) -> None:
    """Strings, bytes, dicts, None and other lists stay as they are."""
    assert type_of(*values) == LISTED
    samples = [conform({"x": value}, {"x": LISTED}) for value in values]
    assert repr(collate(samples, {"x": LISTED})["x"]) == repr(list(values))


def test_arrays_by_their_dimensions() -> None:
    """1-D arrays are padded unless known to have one length; others are stacked."""
    import torch

    assert type_of([1, 2], []) == padded(np.int64)
    assert type_of([], [np.float32(1)], []) == padded(np.float32)
    assert type_of([], []) == padded(np.int64)
    assert type_of(torch.arange(2), [7]) == padded(np.int64)
    assert type_of(np.zeros(3, ">f4"), fixed=True) == FieldType(np.dtype(np.float32), 1, shape=(3,))
    assert type_of(np.zeros((2, 3)), np.zeros((3, 2))) == FieldType(np.dtype(np.float64), 2)
    assert type_of(torch.ones(2, 3, dtype=torch.float16)) == FieldType(
        np.dtype(np.float16), 2, shape=(2, 3)
    )
    assert type_of(torch.tensor(3)) == number(np.int64)
    assert type_of(Image.new("RGB", (4, 3))) == FieldType(np.dtype(np.uint8), 3, shape=(3, 4, 3))


@pytest.mark.parametrize(
    "values", [(1, "a"), (1, [1]), (np.zeros(2), "a"), (np.zeros((2, 3)), np.zeros(3))]
)
def test_first_samples_of_two_kinds_are_refused(values: tuple[Any, ...]) -> None:
    """ConfigError names the field, what was found, and what would work."""
    with pytest.raises(ConfigError, match=r"'x' is not of one kind .*\.map"):
        type_of(*values)


@pytest.mark.parametrize(
    ("first", "value", "said"),
    [
        (1, 2.5, r"'x' is float64 \(2.5\) here, and int64 in the first samples"),
        (1, None, "'x' is null here, and int64"),
        (1, "a", "'x' is str 'a' here, and int64"),
        (1, [1], r"'x' is an array of int64 \(1,\) here, and int64"),
        (
            np.zeros((2, 2)),
            np.zeros((3, 2)),
            r"'x' is an array of float64 \(3, 2\) here, and .* \(2, 2\)",
        ),
        (0.5, (1 << 53) + 1, r"'x' is int64 \(9007199254740993\) here, and float64"),
        ([0.5], [(1 << 53) + 1], "'x' is an array of int64"),
        (np.uint8(1), 300, "'x' is int64 .300. here, and uint8"),
        ("a", 1, r"'x' is int64 \(1\) here, and no number"),
        (["a"], [1], "'x' is an array of int64 .* here, and no number"),
        ([1], ["a"], r"'x' is list \['a'\] here, and an array of int64"),
        ([1], [0.5], "'x' is an array of float64 .* here, and an array of int64"),
        (np.zeros((2, 2)), np.zeros(2), r"\(2,\) here, and .* \(2, 2\)"),
        (1, 1 << 70, "'x' has numbers that do not fit into 64 bits"),
        ([1], [1 << 70], "'x' has numbers that do not fit into 64 bits"),
    ],
)
def test_a_value_that_its_column_cannot_hold_is_the_samples_fault(
    first: Any, value: Any, said: str
) -> None:
    """It is at fault alone as with any other samples."""
    with pytest.raises(DataError, match=said):
        conform({"x": value}, infer_schema([{"x": first}]))


@pytest.mark.parametrize(
    ("first", "value"),
    [
        (0.5, 3),
        (np.float32(1), 0.5),
        (1, True),
        (1, 2.0),
        (np.int16(1), 7),
        ([0.5], [1, 2]),
        ([0.5], []),
        (["a"], []),
        ("a", None),
        (np.zeros(1, np.float32), [1, 2]),
        (1.0, float("nan")),
    ],
)
def test_a_value_that_its_column_holds_exactly_is_taken(first: Any, value: Any) -> None:
    """It is taken in the column's dtype."""
    schema = infer_schema([{"x": first}])
    alone = collate([conform({"x": value}, schema)], schema)["x"]
    together = collate([conform({"x": each}, schema) for each in (first, value)], schema)["x"]
    if isinstance(alone, list):
        assert [*alone] == [value]
    else:
        assert alone.dtype == together.dtype == schema["x"].dtype
        width = alone.shape[1:]
        np.testing.assert_array_equal(
            together[1][tuple(map(slice, width))] if width else together[1], alone[0]
        )


def test_tensors_are_arrays_without_gradients() -> None:
    """A tensor of a dtype that numpy lacks is an error that names the field."""
    import torch

    taken = conform({"x": torch.ones(2, requires_grad=True)}, {"x": padded(np.float32)})
    assert (type(taken["x"]), taken["x"].tolist()) == (np.ndarray, [1, 1])
    with pytest.raises(
        DataError, match=r"'x' is a Tensor that cannot be made an array: numpy has no bfloat16"
    ):
        conform({"x": torch.ones(2, dtype=torch.bfloat16)}, {"x": padded(np.float32)})


def test_fields_too_many_or_too_few() -> None:
    """An extra or missing field is the sample's fault; the order of fields is the schema's."""
    schema = infer_schema([{"a": 1, "b": 2}, {"a": 1}])
    assert list(conform({"b": 1, "a": 2}, schema)) == ["a", "b"]
    with pytest.raises(DataError, match=r"field 'b' is missing \(the sample has 'a'\): .*\.map"):
        conform({"a": 1}, schema)
    with pytest.raises(
        DataError, match=r"field 'c' is not among the first samples' fields \('a', 'b'\)"
    ):
        conform({"a": 1, "b": 2, "c": 3}, schema)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"__index__": 1}, "'__index__' is reserved for a column that the loader adds"),
        ({"__valid__": True}, "'__valid__' is reserved for a column that the loader adds"),
        ({"x": [1], "x_length": 1}, "'x_length'.*rename"),
        ({}, "no fields"),
        ({1: 2}, "names of fields are strings"),
    ],
)
def test_names_that_the_loader_uses_itself_are_refused(sample: dict[str, Any], said: str) -> None:
    """A name that the loader adds is an error, so no field is overwritten."""
    with pytest.raises(ConfigError, match=said):
        infer_schema([sample])
    assert infer_schema([{"x": [1], "x_length": 1}], {"x"})["x_length"] == number(np.int64)


LINES = block(
    JSON=[
        b'{"a": 1, "t": []}',
        b'{"a": null, "t": []}',
        b'{"a": 2.5, "t": [1]}',
        b'{"a": 1, "t": [], "b": 0}',
    ]
)


def test_columns_of_a_batch_do_not_depend_on_its_rows() -> None:
    """Rows alone and together have the same columns, or the same bad sample."""
    table = LINES.slice(0, 3)
    select = [Select({"t": "t"})]
    for rows in ([0], [0, 1], [2], [0, 1, 2]):
        columns = run_with_schema(select, table, rows=rows)
        assert (list(columns), columns["t"].dtype, columns["t"].shape[0]) == (
            ["t", "t_length"],
            np.int64,
            len(rows),
        )
    for rows in ([1], [0, 1], [2, 1]):
        with pytest.raises(DataError, match="'a' is null here, and float64") as caught:
            run_with_schema([], table, rows=rows)
        assert (caught.value.sample, caught.value.offset) == (101, 10)


def test_samples_that_do_not_conform_are_left_out_with_the_bad_ones() -> None:
    """Samples that do not conform are bad samples, by place."""
    pipeline = Pipeline((), 0)
    pipeline = replace(pipeline, schema=pipeline.learn_schema(*arguments([LINES.slice(0, 1)])))
    bad: dict[int, DataError] = {}
    samples = pickle.loads(pickle.dumps(pipeline)).run_samples(*arguments([LINES]), 0, bad)
    assert [sample["a"] for sample in samples] == [1]
    assert {place: error.reason.split(" (")[0].split(":")[0] for place, error in bad.items()} == {
        1: "field 'a' is null here, and int64 in the first samples of the data",
        2: "field 'a' is float64",
        3: "field 'b' is not among the first samples' fields",
    }


def test_the_schema_is_learned_from_good_samples() -> None:
    """Bad samples are left out; if none is good, the first one's error is raised."""

    def odd(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["a"] % 2:
            raise ValueError("odd")
        return sample

    table = block(a=pa.array([1, 2, 3]))
    assert Pipeline((Map(odd),), 0).learn_schema(*arguments([table])) == {"a": number(np.int64)}
    with pytest.raises(DataError, match="odd") as caught:
        Pipeline((Map(odd),), 0).learn_schema(*arguments([table.slice(0, 1)]))
    assert caught.value.sample == 100
    large = block(JSON=[b'{"a": 1}', b'{"a": 1' + b"0" * 30 + b"}"])
    with pytest.raises(DataError, match="64 bits") as caught:
        Pipeline((), 0).learn_schema(*arguments([large]))
    assert (caught.value.sample, caught.value.shard) == (101, "mem://data/a.tar")
    for stages in ([Select({"b": "nope"})], [Map(odd), Select({"b": "nope"})]):
        with pytest.raises(ConfigError, match=r"no field 'nope'; there are 'a'"):
            Pipeline(tuple(stages), 0).learn_schema(*arguments([table.slice(1, 1)]))


def test_a_field_that_a_later_block_lacks_is_its_samples_fault() -> None:
    """The description worked on the first samples, so the later sample is bad."""
    pipeline = Pipeline((Select({"x": "a"}),), 0)
    pipeline = replace(pipeline, schema=pipeline.learn_schema(*arguments([block(a=[1])])))
    with pytest.raises(DataError, match="no field 'a'; there are 'b'") as caught:
        pipeline.run_samples(*arguments([block(a=[1]), block(b=[2])]), 0)
    assert caught.value.sample == 101


def test_batch_maps_need_the_same_fields_in_every_row() -> None:
    """The row that differs is named."""
    with pytest.raises(DataError, match="'b' is in some samples only") as caught:
        Pipeline((MapBatches(lambda columns: columns),), 0).run_samples(*arguments([LINES]), 0)
    assert caught.value.sample == 103
