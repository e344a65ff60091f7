"""A column of an Arrow extension type means the same whatever the process has imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray.data._internal.object_extensions.arrow import ArrowPythonObjectArray
from ray.data._internal.tensor_extensions.arrow import (
    ArrowTensorArray,
    ArrowTensorType,
    ArrowTensorTypeV2,
    ArrowVariableShapedTensorArray,
)

import rayingest as ri
from rayingest.errors import DataError
from rayingest.formats.extension_types import convert_extensions
from rayingest.transforms.raw_block import RawBlock

TENSORS = np.arange(48, dtype=np.float32).reshape(8, 2, 3)
RAGGED = [np.arange(2 * (i + 1), dtype=np.int16).reshape(2, i + 1) for i in range(8)]


def ray_tensors(kind, arrays: np.ndarray, list_type) -> pa.Array:
    value_type = pa.from_numpy_dtype(arrays.dtype)
    flat = pa.array(arrays.reshape(len(arrays), -1).tolist(), list_type(value_type))
    return pa.ExtensionArray.from_storage(kind(arrays.shape[1:], value_type), flat)


def ray_ragged() -> pa.Array:
    values = np.empty(8, object)
    values[:] = RAGGED
    return ArrowVariableShapedTensorArray.from_numpy(values)


COLUMNS = {
    "v1": (ray_tensors(ArrowTensorType, TENSORS, pa.list_), list(TENSORS)),
    "v2": (ray_tensors(ArrowTensorTypeV2, TENSORS, pa.large_list), list(TENSORS)),
    "bool": (ArrowTensorArray.from_numpy(TENSORS > 20), list(TENSORS > 20)),
    "time": (ArrowTensorArray.from_numpy(TENSORS.astype("M8[ms]")), list(TENSORS.astype("M8[ms]"))),
    "ragged": (ray_ragged(), RAGGED),
    "period": (
        pa.array(pd.Series(pd.period_range("2020-01", periods=8, freq="M"))),
        [*range(600, 608)],
    ),
    "interval": (
        pa.array(pd.Series(pd.interval_range(0, 8))),
        [{"left": i, "right": i + 1} for i in range(8)],
    ),
}


def unregistered(column: pa.Array) -> pa.Table:
    """Return the column as a process sees it that has not imported the library."""
    kind = column.type
    metadata = {
        "ARROW:extension:name": kind.extension_name,
        "ARROW:extension:metadata": kind.__arrow_ext_serialize__(),
    }
    storage = column.storage
    return pa.table([storage], pa.schema([pa.field("x", storage.type, metadata=metadata)]))


def values(table: pa.Table) -> list:
    """Return the undecoded values of column x."""
    rows = RawBlock(convert_extensions(table))
    return [rows.value("x", row) for row in range(table.num_rows)]


def same(found: list, expected: list) -> bool:
    return len(found) == len(expected) and all(
        np.array_equal(a, b) and getattr(a, "dtype", None) == getattr(b, "dtype", None)
        if isinstance(b, np.ndarray)
        else a == b
        for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("name", COLUMNS)
def test_types_mean_the_same_with_and_without_their_library(name):
    """Tensors are arrays of their shape and dtype; other types are their storage."""
    column, expected = COLUMNS[name]
    assert same(values(pa.table({"x": column})), expected)
    assert same(values(unregistered(column)), expected)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_converted_table_stays_as_it_is_on_its_way_to_another_process(name):
    """No metadata is left that would bring the type back there."""
    column, expected = COLUMNS[name]
    table = convert_extensions(unregistered(column))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    again = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert again.schema == table.schema
    assert same(values(again), expected)


@pytest.mark.parametrize("name", ["v1", "v2", "bool", "ragged"])
def test_a_null_tensor_is_none(name):
    """The other rows stay arrays."""
    column, expected = COLUMNS[name]
    storage = column.storage.take(pa.array([0, None, 2]))
    table = pa.table({"x": pa.ExtensionArray.from_storage(column.type, storage)})
    assert same(values(table), [expected[0], None, expected[2]])


def hugging_face(shape: list, dtype: str, rows: list) -> pa.Table:
    kind = pa.list_(pa.list_(pa.from_numpy_dtype(dtype)))
    metadata = {
        "ARROW:extension:name": "datasets.features.features.Array2DExtensionType",
        "ARROW:extension:metadata": json.dumps([shape, dtype]),
    }
    schema = pa.schema([pa.field("x", kind, metadata=metadata)])
    return pa.table([pa.array(rows, kind)], schema)


def test_arrays_of_hugging_face_are_arrays_without_its_metadata():
    """Of one shape, of any first length, and null ones."""
    fixed = values(hugging_face([2, 2], "float32", [[[1, 2], [3, 4]], None]))
    assert same(fixed, [np.array([[1, 2], [3, 4]], np.float32), None])
    ragged = values(hugging_face([None, 2], "int16", [[[1, 2]], [], [[3, 4], [5, 6]]]))
    expected = [[[1, 2]], np.zeros((0, 2)), [[3, 4], [5, 6]]]
    assert same(ragged, [np.array(one, np.int16) for one in expected])


def test_arrays_of_another_shape_than_declared_are_errors():
    """They would come as other arrays."""
    with pytest.raises(DataError, match="'x'"):
        convert_extensions(hugging_face([2, 2], "float32", [[[1, 2]]]))


def test_arrows_own_tensors_of_any_shape():
    """Their axes may be permuted."""
    kind = pa.struct({"data": pa.list_(pa.int32()), "shape": pa.list_(pa.int32(), 2)})
    metadata = {
        "ARROW:extension:name": "arrow.variable_shape_tensor",
        "ARROW:extension:metadata": json.dumps({"permutation": [1, 0]}),
    }
    rows = [{"data": [*range(6)], "shape": [2, 3]}, {"data": [7], "shape": [1, 1]}]
    schema = pa.schema([pa.field("x", kind, metadata=metadata)])
    found = values(pa.table([pa.array(rows, kind)], schema))
    first = np.arange(6, dtype=np.int32).reshape(2, 3).T
    assert same(found, [first, np.array([[7]], np.int32)])


def test_pickled_objects_stay_bytes():
    """Nothing unpickles them, also where Ray Data would."""
    column = ArrowPythonObjectArray.from_objects([{"a": 1}])
    (found,) = values(pa.table({"x": column}))
    assert isinstance(found, bytes)


def test_types_inside_lists_and_structs_mean_their_storage():
    """As in a process that does not know them."""
    period = COLUMNS["period"][0]
    lists = pa.ListArray.from_arrays(pa.array([0, 3, 8]), period)
    structs = pa.StructArray.from_arrays([period], ["p"])
    assert values(pa.table({"x": lists}))[0].tolist() == [600, 601, 602]
    assert values(pa.table({"x": structs}))[7] == {"p": 607}


_PRINT = """
import sys, numpy as np, rayingest as ri
for read, path in ((ri.read_parquet, sys.argv[1]), (ri.read_arrow, sys.argv[2])):
    with read(path).batch(8, pad={"ragged": ri.Pad(axes=2)}).loader(workers=0) as loader:
        (batch,) = loader
        print({name: str(getattr(value, "shape", value)) for name, value in batch.items()})
"""


def test_streams_are_the_same_whatever_is_imported(tmp_path):
    """Parquet and Arrow files, in a process with and in one without Ray Data and pandas."""
    table = pa.table({name: column for name, (column, _) in COLUMNS.items()})
    parquet, arrow = tmp_path / "t.parquet", tmp_path / "t.arrow"
    pq.write_table(table, parquet)
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table)
    imports = (
        "",
        "import ray.data._internal.tensor_extensions.arrow, "
        "pandas.core.arrays.arrow.extension_types",
    )
    found = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", f"{first}\n{_PRINT}", parquet, arrow],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for first in imports
    ]
    assert found[0] == found[1]
    assert "'v1': 'torch.Size([8, 2, 3])'" in found[0]
    assert "'ragged': 'torch.Size([8, 2, 8])'" in found[0]


def test_lists_of_the_wrong_length_name_shard_and_place(tmp_path):
    """A tensor that lacks numbers is an error of its block."""
    pq.write_table(hugging_face([2, 3], "int64", [[[1, 2]]]), tmp_path / "t.parquet")
    with (
        pytest.raises(DataError, match=r"t\.parquet"),
        ri.read_parquet(tmp_path / "t.parquet").batch(1).loader(workers=0) as loader,
    ):
        next(iter(loader))
