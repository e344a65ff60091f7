"""Ray gives the stream of workers=0, on any ranks and workers, with any budget, from any state."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset
from rayingest.transforms.images.jpeg import BACKENDS
from tests.support.streams import Step, images, joined, photographs, rows, run, run_on_least

GLOBAL_BATCH = 24
WORLD_SIZES = [1, 2, 3, 4, 6, 8]


@pytest.fixture(scope="module")
def data(shards: str) -> Dataset:
    """A dataset with ten steps an epoch."""
    return images(shards, GLOBAL_BATCH)


@pytest.fixture(scope="module")
def reference(data: Dataset) -> list[Step]:
    """Two epochs of one rank without Ray."""
    return run(data, epochs=2)[0]


def test_the_reference_gives_every_sample_once_and_mixes(reference: list[Step]) -> None:
    """The reference itself is right: distinct samples, and another order in each epoch."""
    first, second = (
        [i for step in part for i, _ in step] for part in (reference[:10], reference[10:])
    )
    for ordinals in (first, second):
        assert len(ordinals) == len(set(ordinals)) == 240
        assert set(ordinals) <= set(range(250))
    assert first != second
    assert first != sorted(first)


@pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
def test_every_world_size_gives_the_same_global_batches(
    data: Dataset, reference: list[Step], world_size: int
) -> None:
    """Ids and decoded bytes of every global batch are those of one rank."""
    assert run(data, world_size, epochs=2)[0] == reference


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_ray_gives_what_the_calling_process_gives(
    data: Dataset, reference: list[Step], pool: ri.Pool, world_size: int
) -> None:
    """With one decoder and with three, on every world size, twice in a row."""
    assert run(data, world_size, epochs=2, pool=pool)[0] == reference


def test_a_second_run_gives_the_same(
    data: Dataset, reference: list[Step], pool_of_3: ri.Pool
) -> None:
    """The stream depends on nothing of a single run."""
    assert run(data, 2, epochs=2, pool=pool_of_3)[0] == reference


def test_workers_use_the_image_backend_of_the_trainer(tmp_path: Path, pool_of_1: ri.Pool) -> None:
    """Ray and this process agree for each backend, and the backends differ."""
    data, found = photographs(tmp_path), {}
    for path in BACKENDS:
        found[path] = run(data, image_backend=path)[0]
        assert run(data, image_backend=path, pool=pool_of_1)[0] == found[path]
    assert len({str(steps) for steps in found.values()}) == len(BACKENDS)


def test_any_budget_from_the_least_on_gives_the_same(
    data: Dataset, reference: list[Step], pool_of_3: ri.Pool
) -> None:
    """From one block and one batch, with blocks evicted and read again, to no limit; never
    exceeded.
    """
    seen, stats = run_on_least(data, pool_of_3)
    assert seen == reference[:10]
    assert stats["peak_bytes"] <= stats["max_bytes"]
    assert stats["blocks_reread"] > 0
    for budget in (3 * stats["max_bytes"], 1 << 40):
        with data.loader(pool=pool_of_3, max_bytes=budget, epochs=2) as loader:
            assert [joined([batch]) for _ in range(2) for batch in loader] == reference
            stats = loader.stats()
        assert stats["peak_bytes"] <= budget
    assert stats["blocks_reread"] == 0


def test_every_step_can_be_resumed_elsewhere(
    data: Dataset, reference: list[Step], pool_of_1: ri.Pool, pool_of_3: ri.Pool
) -> None:
    """From the state before every step, on other ranks and workers, the rest of two epochs is the
    same.
    """
    with data.loader(workers=0) as loader:
        states = [loader.state_dict(), *(loader.state_dict() for _ in loader)]
    assert len(states) == 11
    places: list[dict[str, Any]] = [{"workers": 0}, {"pool": pool_of_1}, {"pool": pool_of_3}]
    for step, state in enumerate(states):
        assert len(json.dumps(state)) < 1024
        world_size = WORLD_SIZES[(step + step // 6) % 6]
        passes = 1 if step == 10 else 2
        assert (
            run(data, world_size, state=state, epochs=passes, **places[step % 3])[0]
            == reference[step:20]
        )


def test_a_state_right_after_a_resume_is_complete(
    data: Dataset, reference: list[Step], pool_of_1: ri.Pool
) -> None:
    """Resumed, saved at once or after one step, and resumed again."""
    _, state = run(data, 2, steps=4)
    for steps in (0, 1):
        with data.loader(pool=pool_of_1, epochs=1) as loader:
            loader.load_state_dict(state)
            for _ in range(steps):
                next(iter(loader))
            again = loader.state_dict()
        assert run(data, 3, state=again, epochs=2)[0] == reference[4 + steps :]


def test_leaving_a_pass_gives_up_its_epoch_and_a_new_one_begins_the_next(
    data: Dataset, reference: list[Step], pool_of_3: ri.Pool
) -> None:
    """`break` and a new `for` give the next epoch from its start, though much was fetched ahead."""
    with data.loader(pool=pool_of_3, epochs=2) as loader:
        for step, batch in enumerate(loader):
            assert rows(batch) == reference[step]
            if step == 2:
                break
        assert (loader.epoch, loader.step) == (0, 3)
        assert [rows(batch) for batch in loader] == reference[10:]
        assert (loader.epoch, loader.step) == (2, 0)


@pytest.mark.parametrize("partial", ["pad", "short"])
def test_tails_are_the_same_over_ray(shards: str, pool_of_1: ri.Pool, partial: str) -> None:
    """Padded and short last batches, also on ranks without rows.

    Each sample is in one valid row.
    """
    data = images(shards, 28, partial=partial)  # 250 = 8 * 28 + 26
    with data.loader(workers=0) as loader:
        batches = list(loader)
    valid = [
        i
        for b in batches
        for i, v in zip(b["__index__"].tolist(), b.get("__valid__", [True] * 28), strict=False)
        if v
    ]
    assert sorted(valid) == list(range(250))
    assert ("__valid__" in batches[0]) == (partial == "pad")
    expected = [joined([batch]) for batch in batches]
    assert len(expected) == 9
    for world_size in (1, 4):
        assert run(data, world_size, pool=pool_of_1)[0] == expected


def test_ranks_without_a_row_get_an_empty_batch_with_all_columns(
    shards: str, pool_of_1: ri.Pool
) -> None:
    """A short last batch of 2 rows on 4 ranks keeps columns, dtypes and shapes."""
    data = images(shards, 124, partial="short")
    for options in ({"workers": 0}, {"pool": pool_of_1}):
        with data.loader(rank=0, world_size=4, epochs=1, **options) as loader:
            *_, last = loader
            assert len(last["__index__"]) == 0
            assert last["image"].shape == (0, 8, 8, 3)
            assert last["name"] == []


def test_columns_do_not_depend_on_which_rows_a_rank_has(tmp_path: Path, pool_of_1: ri.Pool) -> None:
    """Empty lists, and whole numbers among floats: the dtypes are equal on all ranks."""
    lines = [{"i": i, "tags": [1] * (i % 16 == 3), "x": i if i % 8 else 0.5} for i in range(48)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = ri.read_json(str(tmp_path / "a.jsonl")).batch(8)
    expected = run(data)[0]
    for world_size in (2, 8):
        assert run(data, world_size)[0] == run(data, world_size, pool=pool_of_1)[0] == expected


def stack_names(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A user's collate function."""
    return {"i": np.array([s["i"] for s in samples]), "names": [s["name"] for s in samples]}


def test_a_collate_of_the_users_sees_whole_batches(shards: str, pool_of_3: ri.Pool) -> None:
    """Even if the budget makes batches arrive in parts."""
    data = images(shards, GLOBAL_BATCH, collate=stack_names)
    expected = run(data)[0]
    assert run(data, pool=pool_of_3)[0] == expected
    assert run_on_least(data, pool_of_3)[0] == expected


def test_the_next_epoch_is_ready_when_one_ends(
    data: Dataset, pool_of_1: ri.Pool, wait_until: Any
) -> None:
    """The feeder runs ahead across the end of an epoch."""
    with data.loader(pool=pool_of_1, epochs=2) as loader:
        for _ in loader:
            pass
        wait_until(lambda: loader.stats()["batches_ready"] > 0)
        assert loader.stats()["steps"] > 10
    with data.loader(pool=pool_of_1, epochs=1) as loader:
        for _ in loader:
            pass
        wait_until(lambda: loader.stats()["bytes_in_flight"] == 0)
        assert loader.stats()["batches_ready"] == 0
        assert loader.stats()["steps"] == 10


class Log:
    """A function for `map` that adds a byte to a file for each sample."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        with self.path.open("ab") as file:
            file.write(b"x")
        return sample


def test_of_a_pass_that_may_never_begin_only_the_first_steps_are_decoded(
    tmp_path: Path, pool_of_1: ri.Pool, wait_until: Any
) -> None:
    """Without `epochs`: of ten steps two that lie ready and three ahead; the schema takes eight
    samples.
    """
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"x": {i}}}\n' for i in range(200)))
    log = Log(tmp_path / "log")
    data = ri.read_json(str(tmp_path / "rows.jsonl"), index=tmp_path / "index").map(log).batch(20)
    with data.loader(pool=pool_of_1) as loader:
        assert sum(len(batch["x"]) for batch in loader) == 200
        wait_until(lambda: loader.stats()["batches_ready"] == 5)
        assert loader.stats()["decodes_running"] == 0
        assert log.path.stat().st_size == 8 + 200 + 100


def test_a_window_far_beyond_the_budget_is_read_in_runs_of_steps(
    tmp_path: Path, pool_of_1: ri.Pool
) -> None:
    """Ten blocks of 0.9 MB in 2 MB: each is read once for some 20 steps, not for each step."""
    lines = (f'{{"x": {i}, "text": "{i:02000}"}}\n' for i in range(4000))
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    data = ri.read_json(str(tmp_path / "rows.jsonl"), index=tmp_path / "index", block_bytes=900_000)
    data = data.map(lambda sample: {"x": sample["x"]}).shuffle(seed=1, window=4000).batch(8)
    with data.loader(workers=0) as loader:
        expected = [batch["x"].tolist() for batch in islice(loader, 100)]
    with data.loader(pool=pool_of_1, max_bytes=2_000_000) as loader:
        assert [batch["x"].tolist() for batch in islice(loader, 100)] == expected
        stats = loader.stats()
    assert stats["peak_bytes"] <= 2_000_000
    assert stats["blocks_reread"] > 0
    assert stats["blocks_read"] <= 120
