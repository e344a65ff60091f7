"""After an error the next pass goes on where the state says; threads share a pass: in this process
and on Ray.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.execute.cluster import pool as pool_module
from tests.support.streams import images, rows, run, write_shards

TROUBLE = 11
"""The sample with the trouble."""


class While:
    """Passes samples on, and does something bad to one of them while a file exists."""

    def __init__(self, flag: Path, deed: Callable[[], object]) -> None:
        self.flag, self.deed = flag, deed

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["i"]) == TROUBLE and self.flag.exists():
            self.deed()
        return sample


def time_out() -> None:
    raise TimeoutError("busy")


def fail() -> None:
    raise ValueError("no such thing")


def go_on(loader: ri.Loader, flag: Path, error: type[ri.IngestError], match: str) -> list[Any]:
    """Return the rows of an epoch whose first two passes end by this error, until the flag goes."""
    seen: list[Any] = []
    flag.touch()
    for _ in range(2):
        with pytest.raises(error, match=match):
            take_all(loader, seen)
        assert (loader.epoch, loader.step) == (0, len(seen))
    flag.unlink()
    take_all(loader, seen)
    return seen


def take_all(loader: ri.Loader, seen: list[Any]) -> None:
    """Add the rows of a pass, batch by batch."""
    for batch in loader:
        seen.append(rows(batch))


@pytest.mark.parametrize("deed", [time_out, fail])
def test_a_pass_goes_on_after_an_error_of_user_code(
    tmp_path: Path, place: dict[str, Any], deed: Callable[[], None]
) -> None:
    """Each sample comes once, and the next epoch is whole."""
    flag = tmp_path / "flag"
    trouble = While(flag, deed)
    shards = write_shards(tmp_path, [16, 16, 16])
    data = images(shards, 6, choose=lambda data: data.map(trouble))
    whole = run(data, epochs=2)[0]
    with data.loader(**place, epochs=2) as loader:
        assert go_on(loader, flag, ri.IngestError, str(deed.__code__.co_consts[1])) == whole[:8]
        assert [rows(batch) for batch in loader] == whole[8:]


def test_a_pass_goes_on_after_a_shard_was_missing(tmp_path: Path, place: dict[str, Any]) -> None:
    """Once the shard is back."""
    data = images(write_shards(tmp_path, [30, 30]), 10)
    whole = run(data)[0]
    with data.loader(**place) as loader:
        shutil.move(tmp_path / "s-0000.tar", tmp_path / "away")
        seen: list[Any] = []
        with pytest.raises(ri.DataError, match=r"s-0000\.tar"):
            take_all(loader, seen)
        shutil.move(tmp_path / "away", tmp_path / "s-0000.tar")
        take_all(loader, seen)
        assert seen == whole


class Unloadable:
    """Cannot be unpickled while a file exists."""

    def __init__(self, flag: Path) -> None:
        if flag.exists():
            raise ImportError("not installed here")
        self.flag = flag

    def __reduce__(self) -> tuple[Any, ...]:
        return Unloadable, (self.flag,)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return sample


def test_a_pass_goes_on_after_workers_could_not_load_the_description(
    tmp_path: Path, pool_of_1: ri.Pool
) -> None:
    """The thread that serves the loader has ended; the next pass starts another one."""
    flag = tmp_path / "flag"
    picky, shards = Unloadable(flag), write_shards(tmp_path, [16, 16])
    data = images(shards, 8, choose=lambda data: data.map(picky))
    with data.loader(pool=pool_of_1, epochs=1) as loader:
        assert go_on(loader, flag, ri.ConfigError, "cannot load the desc") == run(data)[0]


def test_a_pass_goes_on_after_too_many_workers_failed(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next pass starts workers again."""
    monkeypatch.setattr(pool_module, "MAX_FAILURES_A_MINUTE", 0)
    flag = tmp_path / "flag"
    deadly, shards = While(flag, lambda: os._exit(1)), write_shards(tmp_path, [16, 16])
    data = images(shards, 8, choose=lambda data: data.map(deadly))
    with data.loader(workers=1, epochs=1) as loader:
        assert go_on(loader, flag, ri.WorkerError, "1 workers failed within") == run(data)[0]


def test_threads_share_an_iterator(tmp_path: Path, place: dict[str, Any]) -> None:
    """Each batch goes to one of them, all end with the pass, and so in every epoch."""
    data = images(write_shards(tmp_path, [16, 16, 16]), 2)
    with data.loader(**place, epochs=2) as loader:
        for whole in (run(data)[0], run(data, epochs=2)[0][24:]):
            running = iter(loader)
            with ThreadPoolExecutor(4) as threads:
                tasks = [threads.submit(list, map(rows, running)) for _ in range(4)]
                seen = [one for task in tasks for one in task.result(60)]
            assert sorted(seen) == sorted(whole)
