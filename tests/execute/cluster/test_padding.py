"""Padding: where values and padding are, however the rows of a batch were grouped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rayingest as ri
from rayingest.api.dataset import Dataset
from rayingest.transforms.collate import assemble, collate
from rayingest.transforms.padding import Pad
from rayingest.transforms.schema import conform, infer_schema, with_padding

PADS = st.builds(
    Pad,
    value=st.sampled_from([0, -100, 7]),
    side=st.sampled_from(["right", "left"]),
    multiple_of=st.sampled_from([1, 4, 8]),
    longest=st.just(6),
    truncate=st.just(True),
    mask=st.booleans(),
)


@settings(max_examples=80)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), PADS, st.data())
def test_a_column_is_what_it_is_row_by_row(
    lengths: list[int], pad: Pad, data: st.DataObject
) -> None:
    """In one group or any parts: values on their side, padding elsewhere, lengths and mask."""
    samples = [{"x": np.arange(1, n + 1)} for n in lengths]
    schema = with_padding(infer_schema(samples), {"x": pad})
    whole = collate([conform(sample, schema) for sample in samples], schema)
    width = whole["x"].shape[1]  # type: ignore[union-attr]
    cut = [min(n, 6) for n in lengths]
    assert width == -(-max(cut) // pad.multiple_of) * pad.multiple_of
    for row, n in enumerate(cut):
        fill = [pad.value] * (width - n)
        own = list(range(1, n + 1))
        assert list(whole["x"][row]) == (own + fill if pad.side == "right" else fill + own)
        if pad.mask:
            assert (
                list(whole["x_mask"][row])
                == ([True] * n + [False] * (width - n))[:: 1 if pad.side == "right" else -1]
            )
    assert whole["x_length"].tolist() == cut  # type: ignore[union-attr]
    assert ("x_mask" in whole) == pad.mask
    of_part = np.array(
        data.draw(st.lists(st.integers(0, 2), min_size=len(samples), max_size=len(samples)))
    )
    parts = []
    for part in range(3):
        rows = np.flatnonzero(of_part == part)
        parts.append((rows, collate([conform(samples[row], schema) for row in rows], schema)))
    joined = assemble(
        parts, len(samples), lambda shape, dtype: np.full(shape, 99, dtype), {"x": pad}
    )
    assert joined.keys() == whole.keys()
    for name, column in whole.items():
        assert np.array_equal(joined[name], column), name
        assert joined[name].dtype == column.dtype  # type: ignore[union-attr]


def ragged(folder: Path, pad: dict[str, Any], **options: Any) -> Dataset:
    lines = [{"x": list(range(i % 7)), "n": i} for i in range(48)]
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return (
        ri.read_json(str(folder / "a.jsonl"), block_bytes=200)
        .shuffle(seed=2)
        .batch(12, pad=pad, **options)
    )


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_over_ray_are_those_of_the_calling_process(
    tmp_path: Path, pool_of_1: ri.Pool, side: str
) -> None:
    """Every column, padding included."""
    data = ragged(tmp_path, {"x": ri.Pad(value=-1, side=side, multiple_of=4, mask=True)})
    with data.loader(workers=0) as here, data.loader(pool=pool_of_1) as there:
        for a, b in zip(here, there, strict=True):
            assert a.keys() == b.keys() == {"x", "x_length", "x_mask", "n", "__index__"}
            assert all(np.array_equal(a[name], b[name]) for name in a)
            assert a["x"].shape[1] in (4, 8)


def test_a_row_that_is_too_long_is_an_error_or_cut(tmp_path: Path) -> None:
    """The error names the sample."""
    with pytest.raises(ri.DataError, match=r"'x' has 6 values, more than longest=5.*sample"):
        list(ragged(tmp_path, {"x": ri.Pad(longest=5)}).loader(workers=0))
    for batch in ragged(tmp_path, {"x": ri.Pad(longest=5, truncate=True)}).loader(workers=0):
        assert batch["x_length"].max() == 5


@pytest.mark.parametrize(
    ("pad", "said"),
    [
        ({"y": Pad()}, "no field 'y'"),
        ({"n": Pad()}, "'n' is int64"),
        ({"x": Pad(value=0.5)}, "0.5"),
        ({"x": 3}, "by field, how it is padded"),
    ],
)
def test_fields_that_cannot_be_padded_are_refused(
    tmp_path: Path, pad: dict[str, Any], said: str
) -> None:
    """In one line that names the field."""
    with pytest.raises(ri.ConfigError, match=said):
        list(ragged(tmp_path, pad).loader(workers=0))


@pytest.mark.parametrize(
    "wrong",
    [{"side": "top"}, {"multiple_of": 0}, {"longest": 1.5}, {"truncate": True}, {"value": "a"}],
)
def test_a_pad_is_checked_where_it_is_made(wrong: dict[str, Any]) -> None:
    """A wrong argument is refused by `ri.Pad` itself."""
    with pytest.raises(ri.ConfigError, match=next(iter(wrong))):
        Pad(**wrong)
