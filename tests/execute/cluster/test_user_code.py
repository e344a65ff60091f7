"""User code on Ray: workers get the description as the user gave it, whatever the code opens."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rayingest as ri
from rayingest.api.dataset import Dataset

N = 64


class Opening:
    """Opens a connection and a lock on first use, and says how often it was used."""

    def __init__(self) -> None:
        self.opened: Any = None
        self.uses = 0

    def number(self) -> int:
        self.opened = self.opened or (sqlite3.connect(":memory:"), threading.Lock())
        self.uses += 1
        return self.uses


class Sample(Opening):
    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "use": self.number()}


class Columns(Opening):
    def __call__(self, columns: dict[str, Any]) -> dict[str, Any]:
        return {**columns, "use": [self.number() for _ in columns["x"]]}


class Value(Opening):
    def __call__(self, value: Any) -> int:
        return value + 0 * self.number()


class Batch(Opening):
    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        self.number()
        return {"x": np.array([sample["x"] for sample in samples])}


class Items(Opening):
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, int]:
        return {"x": i, "use": self.number()}


class Shard(Opening, torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        for i in range(info.id, N, info.num_workers):
            yield {"x": i + 0 * self.number()}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The numbers below N, a line each."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(f'{{"x": {i}}}\n' for i in range(N)))
    return str(path)


CASES: dict[str, Callable[[str], Dataset]] = {
    "map": lambda rows: ri.read_json(rows).map(Sample()),
    "map of a method": lambda rows: ri.read_json(rows).map(Sample().__call__),
    "map_batches": lambda rows: ri.read_json(rows).map_batches(Columns()),
    "decode": lambda rows: ri.read_json(rows).decode(x=Value()),
    "items": lambda rows: ri.from_torch(Items()),
    "items of a subset": lambda rows: ri.from_torch(torch.utils.data.Subset(Items(), range(N))),
    "iterable": lambda rows: ri.from_torch_iterable(Shard(), shards=2),
    "length": lambda rows: ri.read_json(rows).map(Sample()).length("x").shuffle(window=N),
}


def numbers(data: Dataset, **options: Any) -> list[int]:
    with data.loader(epochs=1, **options) as loader:
        return sorted(i for batch in loader for i in batch["x"].tolist())


@pytest.mark.parametrize("case", CASES)
def test_what_code_opens_on_first_use_stays_where_it_was_opened(
    case: str, rows: str, pool_of_3: ri.Pool
) -> None:
    """The decoder that learns the schema has used its copy; the other decoders get another."""
    assert numbers(CASES[case](rows).batch(8), pool=pool_of_3) == [*range(N)]


def test_a_collate_may_open_what_it_needs(rows: str, pool_of_3: ri.Pool) -> None:
    data = ri.read_json(rows).batch(8, collate=Batch())
    assert numbers(data, pool=pool_of_3) == [*range(N)]


def test_sources_of_a_mixture_may_open_what_they_need(rows: str, pool_of_3: ri.Pool) -> None:
    mixed = ri.mix(
        {"a": ri.read_json(rows).map(Sample()), "b": ri.from_torch(Items())}, until="all"
    )
    with mixed.batch(8).loader(pool=pool_of_3, epochs=1) as loader:
        assert {i for batch in loader for i in batch["x"].tolist()} == {*range(N)}


def test_to_ray_leaves_the_description_unused(rows: str, pool_of_1: ri.Pool) -> None:
    """The schema is learned from a copy, so a loader of the same data still starts."""
    data = ri.read_json(rows).map(Sample())
    assert len(data.to_ray().take_all()) == N
    assert numbers(data.batch(8), pool=pool_of_1) == [*range(N)]


@pytest.mark.parametrize("case", ["map", "items"])
def test_workers_begin_with_the_state_that_the_user_gave(
    case: str, rows: str, pool_of_1: ri.Pool
) -> None:
    """The samples that taught the schema leave no trace in the copies of the decoders."""
    with CASES[case](rows).batch(8).loader(pool=pool_of_1, epochs=1) as loader:
        uses = sorted(use for batch in loader for use in batch["use"].tolist())
    assert len(uses) == N
    assert uses[0] == 1
