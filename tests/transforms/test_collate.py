"""Columns of samples: the rules, and that parts put together are the whole."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from rayingest.errors import ConfigError, DataError
from rayingest.transforms.collate import assemble, collate, promote


def column(*values, **options):
    return collate([{"x": value} for value in values], **options)


def same(a, b) -> bool:
    """Bit for bit: keys, types, dtypes, shapes, bytes."""
    if a.keys() != b.keys():
        return False
    for name in a:
        if isinstance(a[name], list) or isinstance(b[name], list):
            if type(a[name]) is not type(b[name]) or repr(a[name]) != repr(b[name]):
                return False
        elif (a[name].dtype, a[name].shape, a[name].tobytes()) != (b[name].dtype, b[name].shape, b[name].tobytes()):
            return False
    return True


def dirty(shape, dtype):
    """Memory as a reused buffer gives it: full of something else."""
    return (
        np.frombuffer(b"\xa5" * (int(np.prod(shape)) * np.dtype(dtype).itemsize), np.uint8)
        .copy()
        .view(dtype)
        .reshape(shape)
    )


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
    ],
)
def test_numbers_become_one_dimensional_arrays(values, dtype):
    """Python numbers are 64 bits wide, numpy scalars keep their dtype, mixtures promote."""
    columns = column(*values)
    assert list(columns) == ["x"]
    assert columns["x"].dtype == dtype
    assert columns["x"].tolist() == [complex(v) if dtype == np.complex128 else v for v in values]


def test_equal_shapes_of_two_and_more_dimensions_are_stacked():
    """No lengths, dtype kept, other byte orders made native."""
    arrays = [np.full((2, 3), i, ">f4") for i in range(4)]
    columns = column(*arrays)
    assert list(columns) == ["x"]
    assert columns["x"].dtype == np.dtype("f4").newbyteorder("=")
    np.testing.assert_array_equal(columns["x"], np.stack(arrays))


@pytest.mark.parametrize("lengths", [(3, 1, 2), (2, 2), (4,), (0, 2)])
def test_one_dimensional_arrays_are_always_padded(lengths):
    """Zeros at the end and `_length`, also where lengths happen to be equal, so that keys never depend on data."""
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
    """A field flagged fixed has no `_length`, and its samples may have a field of that name."""
    samples = [{"x": np.arange(3), "x_length": i} for i in range(2)]
    columns = collate(samples, fixed={"x"})
    assert columns["x"].shape == (2, 3)
    assert columns["x_length"].tolist() == [0, 1]
    parts = [(slice(i, i + 1), collate(samples[i : i + 1], fixed={"x"})) for i in range(2)]
    assert same(assemble(parts, 2, dirty), columns)
    with pytest.raises(ConfigError, match=r"'x'.*fixed length"):
        collate([{"x": [1, 2]}, {"x": [1]}], fixed={"x"})


@pytest.mark.parametrize(
    "values",
    [
        ("a", "b"),
        (b"a", b"b"),
        (None, "a"),
        ({"a": 1}, {"a": [2]}),
        (["a"], ["b", "c"]),
        ([[1], [2]], [[3]]),
        (np.array(["a"]), np.array(["b"])),
        (np.datetime64("2020-01-01"),),
        ([], ["a"]),
        ([None], []),
    ],
)
def test_everything_else_is_a_list(values):
    """Strings, bytes, dicts, None and lists of other things come as they are."""
    columns = column(*values)
    assert list(columns) == ["x"]
    assert repr(columns["x"]) == repr(list(values))


def test_lists_without_items_say_nothing_about_the_dtype():
    """Empty lists among others take the others' dtype."""
    columns = column([], [np.float32(1)], [])
    assert columns["x"].dtype == np.float32
    assert columns["x_length"].tolist() == [0, 1, 0]
    assert column([], [])["x"].shape == (2, 0)


def test_things_that_are_arrays_are_taken_as_arrays():
    """Tensors and Pillow images."""
    import torch

    columns = column(torch.ones(2, 3, dtype=torch.float16), torch.zeros(2, 3, dtype=torch.float16))
    assert (columns["x"].dtype, columns["x"].shape) == (np.float16, (2, 2, 3))
    assert column(torch.tensor(3), torch.tensor(4))["x"].tolist() == [3, 4]
    assert column(Image.new("RGB", (4, 3)))["x"].shape == (1, 3, 4, 3)
    assert column(torch.arange(2), [7])["x_length"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((np.zeros((2, 3, 3)), np.zeros((4, 3, 3))), r"'x'.*\(2, 3, 3\), \(4, 3, 3\).*RandomResizedCrop"),
        ((np.zeros((2, 3)), np.zeros((2, 4))), r"'x'.*\(2, 3\), \(2, 4\).*\.map"),
        ((np.zeros((2, 3)), np.zeros(3)), r"'x'.*\(2, 3\), \(3,\)"),
        ((1, [1]), r"'x'.*\(\), \(1,\)"),
        ((1, None), "'x'.*NoneType"),
        ((1, "a"), "'x'.*str"),
        ((np.zeros(2), "a"), "'x'.*str"),
        (([1, "a"], [2]), "'x' holds numbers or arrays in some samples and list in others"),
        ((1 << 70,), "'x'.*64 bits"),
        (([1 << 70],), "'x'.*64 bits"),
    ],
)
def test_values_that_do_not_fit_together(values, said):
    """ConfigError that names the field, what it found, and what would work; the same for parts."""
    with pytest.raises(ConfigError, match=said):
        column(*values)
    if len(values) > 1:
        with pytest.raises(ConfigError, match="'x'"):
            assemble([(slice(i, i + 1), column(value)) for i, value in enumerate(values)], 2, np.empty)


def test_a_missing_field_names_the_sample():
    """The sample that lacks it is named, by ordinal and key, wherever it stands."""
    samples = [{"__key__": "a", "x": 1, "y": 2}, {"__key__": "b", "x": 1}, {"__key__": "c", "x": 1, "y": 2}]
    for order, key in itertools.product([(0, 1, 2), (1, 0, 2), (0, 2, 1)], ["b"]):
        with pytest.raises(DataError, match="field 'y' is missing") as caught:
            collate([samples[i] for i in order], ordinals=np.array([50 + i for i in order]))
        assert (caught.value.sample, caught.value.key) == (51, key)
    with pytest.raises(DataError, match="field 'z' is missing"):
        collate(samples[:1], expected=["x", "z"])
    with pytest.raises(DataError, match="field 'y' is missing"):
        assemble([(slice(0, 1), {"y": [1]}), (slice(1, 2), {"x": [1]})], 2, np.empty)


def test_a_field_named_like_lengths_is_refused():
    """A padded field's lengths do not overwrite a field of the samples."""
    with pytest.raises(ConfigError, match=r"'x_length'.*rename"):
        collate([{"x": [1], "x_length": 1}])


def test_no_samples():
    """Nothing in, nothing out, also as a part."""
    assert collate([]) == {}
    assert assemble([], 0, np.empty) == {}
    assert assemble([(slice(0, 0), {}), (slice(0, 1), column(1))], 1, np.empty)["x"].tolist() == [1]


def test_arrays_written_in_place_are_not_copied():
    """A batch array is used as it is while its rows still are the samples' values, in order; else rows are copied."""
    whole = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    views = list(whole)
    written = [(whole, views)]
    samples = [{"x": view} for view in views]
    assert collate(samples, written=written)["x"] is whole
    for other in ([samples[0], samples[2], samples[1]], samples[:2], [*samples[:2], {"x": np.zeros((2, 2), np.uint8)}]):
        column = collate(other, written=written)["x"]
        assert column is not whole
        np.testing.assert_array_equal(column, np.stack([sample["x"] for sample in other]))
    flat = np.arange(6.0).reshape(3, 2)
    rows = [{"x": view} for view in flat]
    flat_written = [(flat, [row["x"] for row in rows])]
    assert list(collate(rows, written=flat_written)) == ["x", "x_length"]
    assert collate(rows, fixed={"x"}, written=flat_written)["x"] is flat


def test_promotion_does_not_depend_on_grouping():
    """Promotion is associative and commutative over every dtype a tensor can have, and loses no value up to 32 bits."""
    dtypes = [np.dtype(code) for code in "?bBhHiIlLefdFD"]
    for a, b, c in itertools.product(dtypes, repeat=3):
        assert promote(a, b) == promote(b, a)
        assert promote(promote(a, b), c) == promote(a, promote(b, c))
    for a, b in itertools.product(dtypes, repeat=2):
        assert np.can_cast(a, promote(a, b), "safe") or {a.itemsize, b.itemsize} & {8}
        assert np.can_cast(np.result_type(a, b), promote(a, b), "safe")


NUMBERS = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1), st.floats(width=64), st.booleans(), hnp.from_dtype(np.dtype(np.float32))
)
DTYPES = st.sampled_from(
    [np.dtype(code) for code in ("?", "i1", "u1", "i2", "u2", "i4", ">i4", "i8", "u8", "f2", "f4", "f8")]
)
FIELDS = {
    "number": NUMBERS,
    "text": st.text(max_size=3),
    "tokens": st.lists(st.integers(-5, 70_000), max_size=4),
    "mixed": st.lists(NUMBERS.filter(lambda v: not isinstance(v, int) or abs(v) < 1 << 53), max_size=3),
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
    """Any partition of any samples, rows as slices or indices in any order: the same bits as collating all at once."""
    names = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=4, unique=True))
    samples = data.draw(st.lists(st.fixed_dictionaries({name: FIELDS[name] for name in names}), min_size=1, max_size=7))
    n = len(samples)
    group = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    parts = []
    for part in data.draw(st.permutations(range(4))):
        rows = np.flatnonzero(group == part)
        consecutive = len(rows) and rows[-1] - rows[0] + 1 == len(rows)
        place = slice(int(rows[0]), int(rows[-1]) + 1) if consecutive and data.draw(st.booleans()) else rows
        parts.append((place, collate([samples[row] for row in rows], fixed={"fixed"})))
    with np.errstate(all="ignore"):
        assert same(assemble(parts, n, dirty), collate(samples, fixed={"fixed"}))
