"""Whole columns equal the path sample by sample, and exist only where no stage acts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayingest.transforms.padding import Pad
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Map, Select
from tests.support.transform_cases import arguments, block, shard

NUMBERS = [
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.uint16(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
]


def values(rng: np.random.Generator, kind: pa.DataType, n: int) -> pa.Array:
    """Return numbers of any bits of the type, NaNs and negative zeros among them."""
    if pa.types.is_boolean(kind):
        return pa.array(rng.random(n) < 0.5)
    return pa.array(np.frombuffer(rng.bytes(n * kind.bit_width // 8), kind.to_pandas_dtype()), kind)


def column(rng: np.random.Generator, kind: pa.DataType, shape: str, n: int) -> pa.ChunkedArray:
    """Return n numbers, lists of up to 4 or fixed lists of 3, in two chunks with offsets."""

    def chunk(n: int) -> pa.Array:
        if shape == "number":
            return values(rng, kind, n + 1)[1:]
        if shape == "fixed":
            return pa.FixedSizeListArray.from_arrays(values(rng, kind, 3 * (n + 1)), 3)[1:]
        bounds = np.concatenate([[0], np.cumsum(rng.integers(0, 5, n + 1))])
        return pa.ListArray.from_arrays(
            pa.array(bounds, pa.int32()), values(rng, kind, int(bounds[-1]))
        )[1:]

    return pa.chunked_array([chunk(n // 2), chunk(n - n // 2)])


def taken(pipeline: Pipeline, tables: list[pa.Table], rows: Any = None) -> Any:
    """Return the whole columns of these rows, or None."""
    chosen, table_of, row_of, _ = arguments(tables, rows)
    return pipeline.whole_columns([pipeline.open(table) for table in chosen], table_of, row_of)


def with_schema(stages: tuple[Any, ...], tables: list[pa.Table], **options: Any) -> Pipeline:
    pipeline = Pipeline(stages, 1, **options)
    return replace(pipeline, schema=pipeline.learn_schema(*arguments(tables)))


def bits(columns: Any) -> Any:
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in columns.items()}


PADS = st.builds(
    Pad,
    value=st.integers(0, 1),
    side=st.sampled_from(["left", "right"]),
    multiple_of=st.integers(1, 3),
    longest=st.integers(1, 4),
    truncate=st.just(True),
    mask=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(NUMBERS), st.sampled_from(["number", "list", "fixed"])),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 1 << 30),
    st.booleans(),
    st.none() | PADS,
)
def test_whole_columns_are_those_of_the_samples_bit_for_bit(
    fields: list[tuple[pa.DataType, str]], seed: int, renamed: bool, pad: Pad | None
) -> None:
    """For any types and blocks, any order of rows with repeats, and any padding."""
    rng = np.random.default_rng(seed)
    tables = [
        block(**{f"f{i}": column(rng, *field, n) for i, field in enumerate(fields)}) for n in (5, 3)
    ]
    stages = (Select({"y": "f0", "x": f"f{len(fields) - 1}", "z": "f0"}),) if renamed else ()
    name = "y" if renamed else "f0"
    pipeline = with_schema(
        stages, tables, padding={name: pad} if pad and fields[0][1] == "list" else {}
    )
    rows = rng.integers(0, 8, rng.integers(1, 12))
    by_sample = pipeline.finish(pipeline.run_samples(*arguments(tables, rows), 0))
    columns = taken(pipeline, tables, rows)
    assert list(columns) == list(by_sample)
    assert bits(columns) == bits(by_sample)


NULLS = pa.array([1, None, 3])
LISTS = pa.array([[1], [2, 3], []])


@pytest.mark.parametrize(
    ("stages", "tables"),
    [
        ((), [block(a=NULLS)]),
        ((), [block(a=pa.array([[1], None, [2]]))]),
        ((), [block(a=pa.array([[1], [None], [2]]))]),
        ((), [block(a=["x", "y", "z"])]),
        ((), [block(a=[1, 2, 3]), block(a=[1.5, 2.5, 3.5])]),
        ((), [shard()]),
        ((), [block(JSON=['{"a": 1}'])]),
        ((Map(lambda sample: sample),), [block(a=[1, 2, 3])]),
        ((Decode({"a": float}),), [block(a=[1, 2, 3])]),
    ],
)
def test_other_blocks_have_no_whole_columns(stages: Any, tables: Any) -> None:
    """Nulls, text, other dtypes, members, JSON, maps and decoders need single samples."""
    assert taken(with_schema(stages, tables), tables) is None


def test_misfits_are_left_to_the_path_sample_by_sample() -> None:
    """An absent field, lists of another length and a user's collate need single samples."""
    one = [block(a=[1, 2, 3])]
    assert taken(with_schema((), one), [block(b=[1])]) is None
    assert taken(with_schema((Select({"a": "a"}),), one), [block(b=[1])]) is None
    fixed = [block(a=pa.array([[1] * n, [2] * n], pa.list_(pa.int64(), n))) for n in (2, 3)]
    assert taken(with_schema((), fixed[:1]), fixed) is None
    assert taken(with_schema((), fixed[:1]), [block(a=LISTS)]) is None
    assert (
        taken(with_schema((), [block(a=LISTS)], padding={"a": Pad(longest=1)}), [block(a=LISTS)])
        is None
    )
    assert taken(Pipeline((), 1, collate=list), one) is None
    assert taken(with_schema((), one), one, np.zeros(0, np.int64)) == {}
