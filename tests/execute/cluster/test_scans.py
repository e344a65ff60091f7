"""All ranks of a job share one listing, one scan, and one copy of its result on each node."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ray._private.state import actors

import rayingest as ri
from rayingest import formats
from rayingest.execute.cluster.scans import share_scan
from rayingest.formats import get_format

RANKS = 12
VALUES = 100_000


class Numbers:
    """A scan of one part, whose run leaves a file."""

    name, is_light = "numbers", False

    def __init__(self, folder: Path) -> None:
        self._folder, self.key = folder, f"test-{folder}".replace("/", "-")

    def load(self) -> None:
        """Nothing is cached."""

    def save(self, value: np.ndarray) -> None:
        """Nothing is cached."""

    def parts(self) -> Sequence[Callable[[], np.ndarray]]:
        """Return the only part."""
        return [self._compute]

    def join(self, results: Sequence[np.ndarray]) -> np.ndarray:
        """Return the only result."""
        return results[0]

    def _compute(self) -> np.ndarray:
        (self._folder / uuid.uuid4().hex).touch()
        return np.arange(VALUES)


class Broken(Numbers):
    """A scan that fails on the first run."""

    def _compute(self) -> np.ndarray:
        super()._compute()
        if len(list(self._folder.iterdir())) == 1:
            raise ri.DataError("the first run fails")
        return np.arange(VALUES)


def scan_actors() -> set[int]:
    """Return the process ids of all shared scans of the cluster."""
    found = actors(actor_state_name="ALIVE").values()
    return {actor["Pid"] for actor in found if actor["Name"].startswith("rayingest:scan:")}


def share(scan: Numbers, rank: int) -> np.ndarray:
    """Return the result of a scan that all ranks share."""

    def open_scan() -> Any:
        return scan

    result: np.ndarray = share_scan(open_scan, "numbers", scan.key, rank, RANKS, lambda *_: None)[1]
    return result


def test_all_ranks_get_one_object_of_one_scan(
    cluster: Any, tmp_path: Path, wait_until: Any
) -> None:
    """Its actor has few threads, and ends when all ranks have the result."""
    before = scan_actors()
    scan = Numbers(tmp_path)
    with ThreadPoolExecutor(RANKS) as ranks:
        found = list(ranks.map(lambda rank: share(scan, rank), range(RANKS)))
    assert len(list(tmp_path.iterdir())) == 1
    assert all((values == np.arange(VALUES)).all() for values in found)
    assert len({values.__array_interface__["data"][0] for values in found}) == 1
    (own,) = scan_actors() - before
    assert psutil.Process(own).num_threads() < 200
    wait_until(lambda: own not in scan_actors(), 30)


def test_a_scan_that_failed_runs_again(cluster: Any, tmp_path: Path) -> None:
    """Each rank that asked gets the error; who asks later gets the result."""
    scan = Broken(tmp_path)
    with pytest.raises(ri.DataError, match="the first run fails"):
        share(scan, 0)
    assert share(scan, 0)[-1] == VALUES - 1


class Logged(type(get_format("json_lines"))):  # type: ignore[misc]
    """JSON Lines; every listing leaves a file in the folder above."""

    name = "logged"

    def shards(self, urls: Any, *rest: Any) -> Any:
        """List the shards."""
        (Path(urls).parent / f"listed-{uuid.uuid4().hex}").touch()
        return super().shards(urls, *rest)


def test_ranks_share_one_listing_which_the_next_loaders_make_anew(
    tmp_path: Path, pool_of_1: ri.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that was added between two loaders of a rank is there in the second."""
    monkeypatch.setattr(formats, "FORMATS", {**formats.FORMATS, "logged": Logged()})
    (folder := tmp_path / "data").mkdir()
    data = ri.read_format("logged", str(folder)).batch(4)
    for number in range(1, 3):
        (folder / f"{number}.jsonl").write_text('{"x": 1}\n' * 8)
        for rank in range(2):
            with data.loader(rank=rank, world_size=2, pool=pool_of_1, epochs=1) as loader:
                assert sum(len(batch["x"]) for batch in loader) == 4 * number
        assert len(list(tmp_path.glob("listed-*"))) == number
