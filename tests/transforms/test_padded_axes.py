"""Arrays of several dimensions and lists of lists are padded, alike in any parts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rayingest as ri
from rayingest.errors import ConfigError, DataError
from rayingest.transforms.collate import assemble, collate
from rayingest.transforms.padding import Pad
from rayingest.transforms.schema import conform, infer_schema, with_padding
from tests.transforms.test_collate import dirty, same

BOXES = [np.arange(4 * n, dtype=np.float32).reshape(n, 4) + 1 for n in (2, 0, 3)]
NESTED: list[Any] = [[[1, 2, 3], [], [4]], [], [[5]], [[], []]]


def columns_of(values: list[Any], pad: Pad) -> dict[str, Any]:
    """Collate samples whose field x has this padding."""
    samples = [{"x": value} for value in values]
    schema = with_padding(infer_schema(samples, padding={"x": pad}), {"x": pad})
    return collate([conform(sample, schema) for sample in samples], schema)


def test_the_first_axis_of_arrays_is_padded_and_the_others_agree() -> None:
    """Boxes of detections become [rows, most, 4], with lengths and a mask."""
    columns = columns_of(BOXES, Pad(value=-1, multiple_of=2, mask=True))
    assert list(columns) == ["x", "x_length", "x_mask"]
    assert (columns["x"].shape, columns["x"].dtype) == ((3, 4, 4), np.float32)
    assert columns["x_length"].tolist() == [2, 0, 3]
    assert columns["x_mask"].tolist() == [[True] * n + [False] * (4 - n) for n in (2, 0, 3)]
    for row, own in zip(columns["x"], BOXES, strict=True):
        np.testing.assert_array_equal(row[: len(own)], own)
        assert (row[len(own) :] == -1).all()


def test_two_axes_are_padded_on_their_side() -> None:
    """Images of different sizes are padded on two axes; the third must agree."""
    images = [np.full((2, 3, 1), 7, np.uint8), np.full((3, 1, 1), 8, np.uint8)]
    columns = columns_of(images, Pad(axes=2, side="left", mask=True))
    assert columns["x"].shape == (2, 3, 3, 1)
    assert columns["x_length"].tolist() == [[2, 3], [3, 1]]
    assert columns["x"][..., 0].tolist() == [
        [[0, 0, 0], [7, 7, 7], [7, 7, 7]],
        [[0, 0, 8], [0, 0, 8], [0, 0, 8]],
    ]
    np.testing.assert_array_equal(columns["x_mask"], columns["x"][..., 0] > 0)


def test_lists_of_lists_are_padded_whatever_their_lengths() -> None:
    """Lengths hold the largest inner length; the mask holds each one."""
    columns = columns_of(NESTED, Pad(value=-1, axes=2, mask=True))
    assert columns["x"].dtype == np.int64
    assert columns["x_length"].tolist() == [[3, 3], [0, 0], [1, 1], [2, 0]]
    assert columns["x"].tolist() == [
        [[1, 2, 3], [-1, -1, -1], [4, -1, -1]],
        [[-1] * 3] * 3,
        [[5, -1, -1], [-1] * 3, [-1] * 3],
        [[-1] * 3] * 3,
    ]
    np.testing.assert_array_equal(columns["x_mask"], columns["x"] > 0)


def test_longest_is_of_the_first_axis() -> None:
    """A longer first axis is an error that names the field, or is cut."""
    for values in (BOXES, NESTED):
        with pytest.raises(DataError, match="'x' has 3 values, more than longest=2"):
            columns_of(values, Pad(axes=1 if values is BOXES else 2, longest=2))
        cut = columns_of(values, Pad(axes=1 if values is BOXES else 2, longest=2, truncate=True))
        assert cut["x"].shape[1] == 2


@pytest.mark.parametrize("axes", [1, 2])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_parts_put_together_are_the_whole(axes: int, data: st.DataObject) -> None:
    """Widths, lengths and masks do not depend on how rows are grouped."""
    pad = Pad(
        value=-1,
        side=data.draw(st.sampled_from(["left", "right"])),
        multiple_of=data.draw(st.integers(1, 3)),
        mask=True,
        axes=axes,
    )
    inner = st.lists(
        st.integers(-5, 5), min_size=0 if axes == 2 else 2, max_size=4 if axes == 2 else 2
    )
    values = data.draw(st.lists(st.lists(inner, max_size=4), min_size=1, max_size=7))
    if axes == 1:
        values = [np.array(value, np.int64).reshape(-1, 2) for value in values]
    samples, padding = [{"x": value} for value in values], {"x": pad}
    shown = [*samples, {"x": [[1, 2]]}] if axes == 2 else samples
    schema = with_padding(infer_schema(shown, padding=padding), padding)
    good = [conform(sample, schema) for sample in samples]
    cut = sorted(data.draw(st.sets(st.integers(1, len(good) - 1)))) if len(good) > 1 else []
    bounds = [0, *cut, len(good)]
    parts = [(slice(a, b), collate(good[a:b], schema)) for a, b in itertools.pairwise(bounds)]
    assert same(assemble(parts, len(good), dirty, padding), collate(good, schema))


def test_fields_that_cannot_be_padded_are_refused() -> None:
    """Differing axes, too few dimensions, wrong kinds and unfit numbers are errors."""
    with pytest.raises(ConfigError, match="axes=3"):
        Pad(axes=3)
    with pytest.raises(ConfigError, match=r"field .x. is .*, which has no 2 axes to pad"):
        columns_of([np.zeros(2), np.zeros(3)], Pad(axes=2))
    with pytest.raises(ConfigError, match=r"'x'.*shapes \(3, 4\), \(2, 5\)"):
        columns_of([np.zeros((3, 4)), np.zeros((2, 5))], Pad())
    with pytest.raises(ConfigError, match="not of one kind"):
        columns_of([[[1], [2]], [1, 2]], Pad(axes=2))
    schema = with_padding(
        infer_schema([{"x": [[1]]}], padding={"x": Pad(axes=2)}), {"x": Pad(axes=2)}
    )
    for bad in ([[1.5]], [["a"]], [[1], 2], 5, [[[1]]]):
        with pytest.raises(DataError, match=r"field 'x' is .* here"):
            conform({"x": bad}, schema)


def test_nested_columns_of_a_table_are_padded_on_any_place(tmp_path: Path) -> None:
    """A loader gives the rows of the Parquet file, padded."""
    pq.write_table(
        pa.table({"x": pa.array(NESTED * 5, pa.list_(pa.list_(pa.int32())))}),
        tmp_path / "a.parquet",
    )
    data = ri.read_parquet(tmp_path / "a.parquet").batch(
        4, pad={"x": Pad(axes=2, value=-1, mask=True)}
    )
    with data.loader(workers=0) as loader:
        batch = next(iter(loader))
    own = [
        [line[mask].tolist() for line, mask in zip(row, masks, strict=True)][: int(length)]
        for row, masks, (length, _) in zip(
            batch["x"], batch["x_mask"], batch["x_length"], strict=True
        )
    ]
    assert own == NESTED
