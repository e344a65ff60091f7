"""User code that draws from the global random generators is deterministic, and leaves no trace."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rayingest as ri
from rayingest.transforms.global_random import Draws

N = 48


def draw() -> float:
    return random.random() + np.random.random() + np.random.randn() + torch.rand(()).item()


def of_each(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "r": draw()}


def of_some(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "r": np.random.random() if sample["x"] % 7 == 3 else 0.0}


def of_columns(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "r": [draw() for _ in columns["x"]]}


def of_value(value: int) -> float:
    return value + random.gauss(0, 1)


class Weights:
    """Draws when it is set up, once in each worker."""

    def __init__(self) -> None:
        self.weight = random.random()

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "r": self.weight}


def of_batch(samples: list[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
    r = [draw() + rng.random() for _ in samples]
    return {"x": np.array([one["x"] for one in samples]), "r": np.array(r)}


@pytest.fixture
def rows(tmp_path: Path) -> ri.Dataset:
    """The numbers below N."""
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"x": {i}}}\n' for i in range(N)))
    return ri.read_json(tmp_path)


CASES = {
    "map": lambda rows: rows.map(of_each),
    "map, some samples": lambda rows: rows.map(of_some),
    "map_batches": lambda rows: rows.map_batches(of_columns),
    "map behind map_batches": lambda rows: rows.map_batches(lambda columns: columns).map(of_each),
    "decode": lambda rows: rows.select(x="x", r="x").decode(r=of_value),
    "set-up": lambda rows: rows.map(Weights),
}


def values(data: ri.Dataset, batch: int = 8, **options: Any) -> dict[int, float]:
    """Return `r` by `x`, of one epoch."""
    options = options if "pool" in options else {"workers": 0, **options}
    with data.shuffle(seed=3, window=N).batch(batch).loader(epochs=1, **options) as loader:
        return {
            x: r
            for part in loader
            for x, r in zip(part["x"].tolist(), part["r"].tolist(), strict=True)
        }


@pytest.mark.parametrize("case", CASES)
def test_global_generators_are_seeded_for_each_sample(
    case: str, rows: ri.Dataset, pool_of_3: ri.Pool
) -> None:
    """Equal in a second run, in other batches and over Ray; other than with another seed."""
    first = values(CASES[case](rows))
    draw()
    assert values(CASES[case](rows)) == first
    assert values(CASES[case](rows), pool=pool_of_3) == first
    assert values(CASES[case](rows), batch=16) == first
    if case != "set-up":
        assert len(set(first.values())) >= N // 7


def test_epochs_draw_other_numbers(rows: ri.Dataset) -> None:
    with rows.map(of_each).shuffle(seed=3).batch(N).loader(workers=0, epochs=2) as loader:
        one, other = (
            dict(zip(batch["x"].tolist(), batch["r"].tolist(), strict=True))
            for _ in range(2)
            for batch in loader
        )
    assert one.keys() == other.keys()
    assert not set(one.values()) & set(other.values())


def test_a_collate_is_seeded_and_gets_a_generator(rows: ri.Dataset, pool_of_3: ri.Pool) -> None:
    """The numbers of a step are the same in every run and over Ray."""

    def batches(**options: Any) -> list[list[float]]:
        data = rows.shuffle(seed=3).batch(8, collate=of_batch)
        with data.loader(epochs=2, **options) as loader:
            return [batch["r"].tolist() for _ in range(2) for batch in loader]

    first = batches(workers=0)
    assert batches(workers=0) == first
    assert batches(pool=pool_of_3) == first
    assert len({r for one in first for r in one}) == 2 * N


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("case", ["map", "map_batches", "set-up"])
def test_the_process_gets_its_own_states_back(case: str, pending: bool, rows: ri.Dataset) -> None:
    """Also the second number of a pair of normal ones that is yet to be drawn."""

    def numbers(between: Any) -> list[float]:
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        drawn = []
        for _ in range(3):
            if pending:
                drawn += [np.random.randn(), random.gauss(0, 1), torch.randn(()).item()]
            between()
            drawn += [np.random.randn(), random.gauss(0, 1), draw()]
        return drawn

    data = CASES[case](rows).batch(8)
    with data.loader(workers=0) as loader:
        batches = iter(loader)
        assert numbers(lambda: next(batches)) == numbers(lambda: None)


def test_bad_samples_are_found_by_the_same_numbers(rows: ri.Dataset) -> None:
    """A function that fails by chance fails for the same samples in every run."""

    def fail_by_chance(sample: dict[str, Any]) -> dict[str, Any]:
        if random.random() < 0.2:
            raise ValueError("by chance")
        return {**sample, "r": np.random.random()}

    runs = [values(rows.map(fail_by_chance), on_error="skip", max_errors=N) for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0]) < N


def test_filters_choose_the_same_samples_in_every_scan(rows: ri.Dataset, tmp_path: Path) -> None:
    """A filter that draws is evaluated once, by numbers that depend on the sample alone."""
    found = []
    for place in ("a", "b"):
        data = ri.read_json(tmp_path, index=tmp_path / f"{place}.index")
        chosen = data.filter(lambda sample: random.random() < 0.5)
        with chosen.batch(1).loader(workers=0, epochs=1) as loader:
            found.append([batch["x"].item() for batch in loader])
    assert found[0] == found[1]
    assert 0 < len(found[0]) < N


def test_code_that_draws_nothing_is_called_once(rows: ri.Dataset) -> None:
    """Neither seeded nor called again; code that draws is called again in its first run alone."""
    calls: list[int] = []

    def count(sample: dict[str, Any]) -> dict[str, Any]:
        calls.append(sample["x"])
        return {**sample, "r": 0}

    values(rows.map(count))
    assert len(calls) == N + 8  # the samples that taught the schema
    draws = Draws()
    runs = []

    def run() -> float:
        runs.append(0)
        with draws.watch("unit"):
            draws.seed("unit", 7)
            return random.random()

    assert draws.run(run) == draws.run(run)
    assert len(runs) == 3  # not seeded, seeded; and the second time seeded at once
