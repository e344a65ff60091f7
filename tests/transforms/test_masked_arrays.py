"""A mask is never dropped in silence, wherever a value comes from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.masked import masked_tensor

import rayingest as ri

MASKED = np.ma.masked_array([1.0, -9999.0], mask=[False, True])
OPEN = np.ma.masked_array([1.0, 2.0], mask=[False, False])


@pytest.fixture
def rows(tmp_path) -> ri.Dataset:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"x": i}) + "\n" for i in range(8)))
    return ri.read_json(path)


def loaded(dataset: ri.Dataset) -> list[dict[str, Any]]:
    with dataset.loader(workers=0, epochs=1) as loader:
        return list(loader)


class Items:
    """A dataset whose items hold this value."""

    def __init__(self, value) -> None:
        self.value = value

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int):
        return {"x": self.value}


SOURCES = {
    "map": lambda rows, value: rows.map(lambda s: {"x": value}),
    "decode": lambda rows, value: rows.decode(x=lambda x: value),
    "map_batches": lambda rows, value: rows.map_batches(lambda c: {"x": [value] * len(c["x"])}),
    "from_torch": lambda rows, value: ri.from_torch(Items(value)),
    "from_torch_iterable": lambda rows, value: ri.from_torch_iterable(
        lambda shard: ({"x": value} for _ in range(8)), shards=1
    ),
}


@pytest.mark.filterwarnings("ignore:.*MaskedTensors")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_masked_value_is_an_error_that_names_the_way_out(rows, source, kind):
    """From every stage and source; an array whose mask hides nothing is an array."""
    tensor = masked_tensor(torch.tensor([1.0, -9999.0]), torch.tensor([True, False]))
    value = MASKED if kind == "numpy" else tensor
    with pytest.raises(ri.IngestError, match=r"\.filled\("):
        loaded(SOURCES[source](rows, value).batch(4))
    (first, _) = loaded(SOURCES[source](rows, OPEN).batch(4))
    assert first["x"].tolist() == [[1.0, 2.0]] * 4


def test_a_masked_column_of_map_batches_is_an_error(rows):
    """Its rows are numbers, one of which is masked."""
    column = np.ma.masked_array(np.arange(8), mask=np.arange(8) == 3)
    with pytest.raises(ri.DataError, match="masked"):
        loaded(rows.map_batches(lambda c: {"x": column[np.array(c["x"])]}).batch(4))


def test_a_masked_result_of_collate_is_an_error(rows):
    """It would become a tensor without its mask."""
    with pytest.raises(ri.ConfigError, match="masked"):
        loaded(rows.batch(2, collate=lambda samples: {"x": MASKED}))


def test_masked_weights_and_images_are_errors(rows):
    """A masked weight is no weight, and an image has no place for a mask."""
    with pytest.raises(ri.ConfigError):
        rows.weighted(np.ma.masked_array(np.ones(8), mask=np.arange(8) == 0))
    image = np.ma.masked_array(np.zeros((4, 4), np.uint8), mask=np.eye(4, dtype=bool))
    with pytest.raises(ri.DataError, match="mask"):
        ri.images.Decode("L")(image)


def test_rows_of_two_padded_axes_keep_no_mask(rows):
    """A masked array inside a list of arrays is an error too."""
    ragged = rows.map(lambda s: {"x": [OPEN, MASKED]})
    with pytest.raises(ri.DataError, match="masked"):
        loaded(ragged.batch(4, pad={"x": ri.Pad(axes=2)}))
