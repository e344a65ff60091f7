"""Samples weighted by a column, a function, an array or classes: the same stream anywhere."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset
from tests.support.streams import run

SAMPLES = 90


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`quality` grows from 0; every ninth sample is of class "rare", the others are "often"."""
    path = tmp_path_factory.mktemp("weighted") / "a.parquet"
    i = np.arange(SAMPLES)
    columns = {"i": i, "quality": i / 10, "label": ["often" if one % 9 else "rare" for one in i]}
    pq.write_table(pa.table(columns), path, row_group_size=7)
    return str(path)


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"i": sample["i"], "noise": rng.random()}


def weighted(table: str, by: Any = "quality", **how: Any) -> Dataset:
    data = ri.read_parquet(table, block_bytes=200)
    return data.weighted(by, **how).map(noisy).shuffle(seed=3, window=40).batch(6)


def drawn(data: Dataset) -> Counter[int]:
    with data.loader(workers=0) as loader:
        return Counter(i for batch in loader for i in batch["__index__"].tolist())


def test_the_promises_hold(table: str, pool_of_1: ri.Pool) -> None:
    """On Ray, on two ranks, from the state after every step; repeats have their own noise."""
    data = weighted(table, samples=60)
    reference, _ = run(data, epochs=2)
    assert run(data, 2, epochs=2, pool=pool_of_1)[0] == reference
    with data.loader(workers=0) as loader:
        states = [loader.state_dict() for _ in range(2) for _ in loader]
    assert len(json.dumps(states[0])) < 1024
    assert states[0]["order"]["kind"] == "weighted"
    for step, state in enumerate(states[:-1], 1):
        assert (
            run(data, (1, 2, 3)[step % 3], state=state, epochs=1 if step >= 10 else 2)[0]
            == reference[step:]
        )
    rows = [row for step in reference[:10] for row in step]
    assert len({index for index, _ in rows}) < len(rows) == len(set(rows)) == 60


def test_weights_may_be_a_column_a_function_or_an_array(table: str) -> None:
    """All give the same stream; classes come equally often."""
    by_column = drawn(weighted(table))
    assert by_column == drawn(weighted(table, lambda sample: sample["i"] / 10))
    assert by_column == drawn(weighted(table, np.arange(SAMPLES) / 10))
    share = SAMPLES * np.arange(SAMPLES) / sum(range(SAMPLES))
    assert all(abs(by_column[i] - share[i]) < 1 for i in range(SAMPLES))
    labels = ["often" if i % 9 else "rare" for i in range(SAMPLES)]
    for balance in ("label", lambda sample: sample["label"], labels):
        found = drawn(weighted(table, None, balance=balance))
        assert sum(count for i, count in found.items() if i % 9 == 0) == SAMPLES / 2
    few = ri.read_parquet(table).take(10).weighted(balance="label").shuffle(seed=1).batch(10)
    assert drawn(few)[0] + drawn(few)[9] == 5


def test_weights_work_with_buckets_and_longer_epochs(table: str) -> None:
    """Two passes of weighted samples, in batches of similar length."""
    data = (
        ri.read_parquet(table)
        .length("i")
        .weighted("quality", samples=36)
        .shuffle(seed=1, window=36)
    )
    with data.batch(6, bucketed=True).epoch(passes=2).loader(workers=0) as loader:
        batches = [batch["i"].tolist() for batch in loader]
    assert len(batches) == 12
    assert np.mean([max(batch) - min(batch) for batch in batches]) < SAMPLES / 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.weighted(), "give one of them"),
        (lambda data: data.weighted("quality", balance="label"), "give one of them"),
        (
            lambda data: data.weighted(3),
            "by=3: a field's name, a function of a sample, or an array",
        ),
        (lambda data: data.weighted("quality", samples=0), "samples=0"),
        (lambda data: data.weighted("quality").batch(6), r"needs .shuffle\(\)"),
        (
            lambda data: data.weighted([1, 2]).shuffle(),
            "2 entries; it must have one for each of 90 samples",
        ),
        (
            lambda data: data.weighted([-1] * SAMPLES).shuffle(),
            r"sample 0 is -1.0; a weight must be a finite number of 0 or more",
        ),
        (lambda data: data.weighted([0] * SAMPLES).shuffle(), "sum to 0"),
        (
            lambda data: data.weighted("i").pack(4, "i").shuffle(),
            "weighted cannot be used with pack",
        ),
        (lambda data: data.map(noisy).weighted("i").shuffle(), "draws random numbers"),
        (
            lambda data: ri.mix({"a": data.weighted("i")}),
            "a mixture weighs its sources, not their samples",
        ),
        (lambda data: data.weighted([1e-310] * SAMPLES).shuffle(), "sum to .*e-30"),
    ],
)
def test_wrong_options_are_refused(table: str, change: Any, said: str) -> None:
    """In one line that names the value."""
    with pytest.raises(ri.ConfigError, match=said):
        change(ri.read_parquet(table)).batch(6).loader(workers=0)


def test_an_invalid_weight_names_its_sample(table: str) -> None:
    """With the value."""
    with pytest.raises(
        ri.DataError,
        match=r"weighted\(label\) gave 'rare'; it must give a number, 0 or more.*sample 0",
    ):
        weighted(table, "label").loader(workers=0)


def test_other_weights_are_another_stream(table: str) -> None:
    """A state of other weights is refused."""
    _, state = run(weighted(table), steps=2)
    with pytest.raises(ri.StateError, match="weights: the state has"):
        run(weighted(table, "i"), state=state)
