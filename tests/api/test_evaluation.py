"""Sums and counts of valid rows give the same evaluation on any number of ranks."""

from __future__ import annotations

import json

import pytest
import torch

import rayingest as ri

N = 21


def total(data: ri.Dataset, world_size: int, **options) -> tuple[list[float], list[int]]:
    """Return sum and count over all ranks, and the valid rows of each batch of each rank."""
    sums, counts = torch.zeros(2, dtype=torch.float64), []
    for rank in range(world_size):
        how = {"rank": rank, "world_size": world_size, "workers": 0, "epochs": 1, **options}
        with data.loader(**how) as loader:
            for batch in loader:
                losses = batch["x"].double()
                valid = batch.get("__valid__", torch.ones(len(losses), dtype=torch.bool))
                sums += torch.stack([losses[valid].sum(), valid.sum()])
                counts.append(int(valid.sum()))
    return sums.tolist(), counts


@pytest.fixture
def data(tmp_path) -> ri.Dataset:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"x": i}) + "\n" for i in range(N)))
    return ri.read_json(path)


@pytest.mark.parametrize("partial", ["pad", "short"])
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_every_sample_counts_once_on_any_number_of_ranks(data, partial, world_size):
    """Although some ranks have no sample at the end."""
    sums, counts = total(data.batch(8, partial=partial), world_size)
    assert sums == [sum(range(N)), N]
    assert world_size < 8 or 0 in counts


@pytest.mark.parametrize("world_size", [1, 4])
def test_padded_batches_have_one_shape(data, world_size):
    """Also where none of a rank's rows is valid."""
    for rank in range(world_size):
        padded = data.batch(8, partial="pad")
        with padded.loader(rank=rank, world_size=world_size, workers=0, epochs=1) as loader:
            assert {tuple(batch["x"].shape) for batch in loader} == {(8 // world_size,)}


def test_skipped_samples_do_not_count(data):
    """A rank whose samples are all bad has no valid row."""

    def refuse(sample):
        if 8 <= sample["x"] < 12:
            raise ValueError("bad")
        return sample

    skipping = {"on_error": "skip", "max_errors": 1.0}
    sums, counts = total(data.map(refuse).batch(8, partial="pad"), 2, **skipping)
    assert sums == [sum(range(N)) - 8 - 9 - 10 - 11, N - 4]
    assert 0 in counts
