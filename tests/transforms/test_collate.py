"""Samples become columns, and parts put together equal the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rayingest.errors import ConfigError, DataError
from rayingest.transforms.collate import assemble, collate
from rayingest.transforms.schema import conform, infer_schema


def columns_of(samples, fixed=(), in_place=()):
    """Collate samples by the schema that they suggest."""
    schema = infer_schema(samples, fixed)
    return collate([conform(sample, schema) for sample in samples], schema, in_place=in_place)


def column(*values, **options):
    return columns_of([{"x": value} for value in values], **options)


def same(a, b) -> bool:
    """Assert equal keys, types, dtypes, shapes and bytes."""
    if a.keys() != b.keys():
        return False
    for name in a:
        if isinstance(a[name], list) or isinstance(b[name], list):
            if type(a[name]) is not type(b[name]) or repr(a[name]) != repr(b[name]):
                return False
        elif (a[name].dtype, a[name].shape, a[name].tobytes()) != (
            b[name].dtype,
            b[name].shape,
            b[name].tobytes(),
        ):
            return False
    return True


def dirty(shape, dtype):
    """Allocate memory that is full of other values, as a reused buffer is."""
    return (
        np.frombuffer(b"\xa5" * (int(np.prod(shape)) * np.dtype(dtype).itemsize), np.uint8)
        .copy()
        .view(dtype)
        .reshape(shape)
    )


def test_equal_shapes_of_two_and_more_dimensions_are_stacked():
    """They have no lengths and keep their dtype; other byte orders become native."""
    arrays = [np.full((2, 3), i, ">f4") for i in range(4)]
    columns = column(*arrays)
    assert list(columns) == ["x"]
    assert columns["x"].dtype == np.dtype("f4").newbyteorder("=")
    np.testing.assert_array_equal(columns["x"], np.stack(arrays))


@pytest.mark.parametrize("lengths", [(3, 1, 2), (2, 2), (4,), (0, 2)])
def test_one_dimensional_arrays_are_always_padded(lengths):
    """They get zeros and `_length` even if lengths are equal: keys never depend on data."""
    for make in (lambda n: list(range(1, n + 1)), lambda n: np.arange(1, n + 1, dtype=np.int32)):
        columns = column(*map(make, lengths))
        assert list(columns) == ["x", "x_length"]
        assert columns["x"].dtype == (np.int64 if isinstance(make(1), list) else np.int32)
        assert columns["x"].shape == (len(lengths), max(lengths))
        assert columns["x_length"].dtype == np.int64
        assert columns["x_length"].tolist() == list(lengths)
        for row, n in zip(columns["x"], lengths, strict=True):
            assert row.tolist() == [*range(1, n + 1), *[0] * (max(lengths) - n)]


def test_fixed_fields_are_stacked_without_lengths():
    """A field of fixed length has no `_length`, so the samples may have a field of that name."""
    samples = [{"x": np.arange(3), "x_length": i} for i in range(2)]
    columns = columns_of(samples, fixed={"x"})
    assert columns["x"].shape == (2, 3)
    assert columns["x_length"].tolist() == [0, 1]
    parts = [(slice(i, i + 1), columns_of(samples[i : i + 1], fixed={"x"})) for i in range(2)]
    assert same(assemble(parts, 2, dirty), columns)


def test_fixed_fields_whose_first_lengths_differ_are_padded():
    """The samples decide, where the source's promise is wrong; later ones cannot."""
    columns = columns_of([{"x": [1, 2]}, {"x": [1]}], fixed={"x"})
    assert columns["x"].tolist() == [[1, 2], [1, 0]]
    assert columns["x_length"].tolist() == [2, 1]
    with pytest.raises(DataError, match=r"pad=\{'x': ri\.Pad\(\)\}"):
        conform({"x": [1]}, infer_schema([{"x": [1, 2]}], fixed={"x"}))


def test_no_samples():
    """No samples give no columns, also as a part."""
    assert collate([], {}) == collate([], infer_schema([{"x": 1}])) == {}
    assert assemble([], 0, np.empty) == {}
    assert assemble([(slice(0, 0), {}), (slice(0, 1), column(1))], 1, np.empty)["x"].tolist() == [1]


def test_arrays_written_in_place_are_not_copied():
    """A batch array is used as it is if its rows are the samples' values, in order."""
    whole = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    views = list(whole)
    in_place = [(whole, views)]
    samples = [{"x": view} for view in views]
    assert columns_of(samples, in_place=in_place)["x"] is whole
    for other in (
        [samples[0], samples[2], samples[1]],
        samples[:2],
        [*samples[:2], {"x": np.zeros((2, 2), np.uint8)}],
    ):
        column = columns_of(other, in_place=in_place)["x"]
        assert column is not whole
        np.testing.assert_array_equal(column, np.stack([sample["x"] for sample in other]))
    flat = np.arange(6.0).reshape(3, 2)
    rows = [{"x": view} for view in flat]
    flat_in_place = [(flat, [row["x"] for row in rows])]
    assert list(columns_of(rows, in_place=flat_in_place)) == ["x", "x_length"]
    assert columns_of(rows, fixed={"x"}, in_place=flat_in_place)["x"] is flat


NUMBERS = st.one_of(
    st.integers(-(1 << 53), 1 << 53),
    st.floats(width=64),
    st.booleans(),
    hnp.from_dtype(np.dtype(np.float32)),
)
DTYPES = st.sampled_from(
    [
        np.dtype(code)
        for code in ("?", "i1", "u1", "i2", "u2", "i4", ">i4", "i8", "u8", "f2", "f4", "f8")
    ]
)
FIELDS = {
    "number": NUMBERS,
    "text": st.text(max_size=3),
    "tokens": st.lists(st.integers(-5, 70_000), max_size=4),
    "mixed": st.lists(
        NUMBERS.filter(lambda v: not isinstance(v, int) or abs(v) < 1 << 53), max_size=3
    ),
    "array": DTYPES.flatmap(lambda d: hnp.arrays(d, st.integers(0, 4))),
    "image": DTYPES.flatmap(lambda d: hnp.arrays(d, (2, 3, 1))),
    "fixed": DTYPES.flatmap(lambda d: hnp.arrays(d, (3,))),
    "tags": st.lists(st.text(max_size=2), max_size=2),
    "record": st.dictionaries(st.text(max_size=1), st.integers(), max_size=2),
    "maybe": st.none() | st.binary(max_size=2),
}


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_parts_put_together_are_the_whole(data):
    """Any partition, rows as slices or indices, gives the bits of collating all at once."""
    names = data.draw(
        st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=4, unique=True)
    )
    samples = data.draw(
        st.lists(
            st.fixed_dictionaries({name: FIELDS[name] for name in names}), min_size=1, max_size=7
        )
    )
    n = len(samples)
    group = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    schema = infer_schema(samples, {"fixed"})
    with np.errstate(all="ignore"):
        try:
            samples = [conform(sample, schema) for sample in samples]
        except DataError:  # whole numbers above 2^53 among floats
            assume(False)
    parts = []
    for part in data.draw(st.permutations(range(4))):
        rows = np.flatnonzero(group == part)
        consecutive = len(rows) and rows[-1] - rows[0] + 1 == len(rows)
        place = (
            slice(int(rows[0]), int(rows[-1]) + 1)
            if consecutive and data.draw(st.booleans())
            else rows
        )
        parts.append((place, collate([samples[row] for row in rows], schema)))
    assert same(assemble(parts, n, dirty), collate(samples, schema))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            (np.zeros((2, 3, 3)), np.zeros((4, 3, 3))),
            r"'x'.*\(2, 3, 3\), \(4, 3, 3\).*RandomResizedCrop",
        ),
        ((np.zeros((2, 3)), np.zeros((2, 4))), r"'x'.*\(2, 3\), \(2, 4\).*\.map"),
    ],
)
def test_shapes_that_cannot_be_stacked(values, said):
    """ConfigError names the field, the shapes and what would work, also for parts."""
    with pytest.raises(ConfigError, match=said):
        column(*values)
    with pytest.raises(ConfigError, match=said):
        assemble([(slice(i, i + 1), column(value)) for i, value in enumerate(values)], 2, np.empty)
