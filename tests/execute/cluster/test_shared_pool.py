"""Loaders of one process share a pool by default; `workers=` and `pool=` still rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.execute.cluster import pool as pool_module
from rayingest.execute.cluster.resources import count_decoders, explain_no_decoder


@pytest.fixture
def two_cpus(cluster: Any) -> Iterator[None]:
    """Leave 2 of the cluster's 12 CPUs."""
    before = sum(count_decoders().values())
    taken = cluster.util.placement_group([{"CPU": 10 - before}])
    cluster.get(taken.ready())
    yield
    cluster.util.remove_placement_group(taken)


@pytest.fixture
def data(tmp_path: Path) -> Any:
    """200 samples in batches of 20."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"x": i}) + "\n" for i in range(200)))
    return ri.read_json(str(path)).batch(20, partial="short")


def values(loader: Any) -> list[int]:
    """Return the values of one pass."""
    return [value for batch in loader for value in batch["x"].tolist()]


def test_training_and_validation_share_two_cpus(data: Any, two_cpus: None) -> None:
    """Both have decoders, although the first loader took every CPU; the last close ends them."""
    others = count_decoders()
    with data.loader() as train:
        steps = iter(train)
        next(steps)
        with data.loader(epochs=1) as validation:
            assert values(validation) == list(range(200))
            assert sum((count_decoders() - others).values()) <= 2
        next(steps)
    with data.loader(epochs=1) as again:
        assert values(again) == list(range(200))


def test_a_loader_with_workers_has_a_pool_of_its_own(data: Any, cluster: Any) -> None:
    """So has one with a pool; both leave the shared pool alone."""
    with (
        data.loader(epochs=1) as shared,
        data.loader(workers=1, epochs=1) as own,
        ri.Pool(workers=3) as pool,
        data.loader(pool=pool, epochs=1) as given,
    ):
        assert [loader.stats()["decoders_wanted"] for loader in (shared, own, given)] == [2, 1, 3]
        assert values(own) == values(given) == values(shared) == list(range(200))


def test_an_error_names_who_has_the_cpus(
    data: Any, two_cpus: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And that the loaders of the process can share their decoders. So does a line before it."""
    monkeypatch.setattr(pool_module, "FIRST_SECONDS", 0.1)
    with data.loader(workers=2, epochs=1) as train:
        assert values(train) == list(range(200))
        with (
            data.loader(workers=2, start_timeout=3) as validation,
            pytest.raises(ri.WorkerError, match="2 by decoders of another pool") as error,
        ):
            next(iter(validation))
    assert "leave out workers=" in str(error.value)
    logged = [record.getMessage() for record in caplog.records]
    assert any(
        "no free CPU for a decoder" in line and line.endswith("(start_timeout=3 s)")
        for line in logged
    )


def test_the_words_name_pools_and_other_programs() -> None:
    """A pool of another process by its name; CPUs of other actors and tasks as a number."""
    words = explain_no_decoder(2, 60.0, 8.0, 0.0, {"rayingest:01:rank1:pool0-ab": 3}, ())
    assert "(3 by decoders of the pool rayingest:01:rank1:pool0-ab, 5 by starting decoders" in words
    assert "share" not in words


def test_a_decoder_of_the_pool_itself_that_has_not_answered_lacks_no_cpu() -> None:
    """Its process starts slowly; no other pool and no CPU is named."""
    words = explain_no_decoder(
        1, 10.0, 2.0, 0.0, {"rayingest:01:own": 1}, ("rayingest:01:own",), "rayingest:01:own"
    )
    assert "no decoder has started after 10 s" in words
    assert "its process starts slowly: use a longer start_timeout" in words
    assert "another pool" not in words
