"""Fixtures of all tests: one Ray cluster a process, with a pool of one decoder and one of three.

Property tests draw the same cases in every run. When several processes run the tests, all tests of
a file run in one of them.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# A token file in the user's home makes Ray ask for authentication. What this hides is tested in the
# `plain` environment.
os.environ["RAY_AUTH_MODE"] = "disabled"
# Every process that a test starts imports the tests' modules, Ray's workers too. Each module is
# compiled once.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Ray exports metrics every 10 s by default; tests that wait for them would wait as long.
os.environ["RAY_metrics_report_interval_ms"] = "1000"  # noqa: SIM112 - Ray's own spelling
# Ray Train polls its ranks every 2 s by default, and a rank's report waits for the poll.
os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.2"
# Ray Train starts an actor that looks for nodes about to be preempted; there are none here.
os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"

settings.register_profile(
    "fixed",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fixed")

SLOW = (
    "tests/jobs/",
    "tests/docs/",
    "tests/execute/cluster/",
    "tests/api/test_frameworks.py",
    "tests/tools/",
)
"""Files that start clusters. They begin first, so that no process works on one alone at the end."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, keep the tests of a file together, slow files first."""
    if config.getoption("dist", "no") == "no":
        return
    items.sort(key=lambda item: not item.nodeid.startswith(SLOW))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_collection_finish() -> None:
    """Exempt the imported modules from garbage collection: a full one takes a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which this run caches indexes, also from the processes that tests start."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Skip `fsync`: tests write hundreds of indexes, and none has to survive a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A new user's environment: an empty home, Ray's defaults, the package as installed."""
    from tests.support.plain import make_plain_environment

    return make_plain_environment(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def cluster(cache_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Ray cluster of one node that claims 12 CPUs."""
    import ray

    # Ray looks for free ports before it binds them: of two clusters that start at the same time,
    # one may take the other's.
    with FileLock(tmp_path_factory.getbasetemp().parent / "ray_starts.lock"):
        ray.init(
            "local",  # never another cluster on this machine
            num_cpus=12,
            object_store_memory=400 << 20,
            include_dashboard=False,
            log_to_driver=False,
        )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """A function that returns once a condition holds, and fails after a deadline."""

    def wait(holds: Callable[[], object], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"still false after {seconds:g} s"
            time.sleep(0.02)

    return wait


@contextmanager
def running_pool(
    workers: int, rank: int, world_size: int, wait_until: Callable[..., None]
) -> Iterator[Any]:
    """A pool whose actors all run: its decoders and a reader."""
    import rayingest as ri

    with ri.Pool(workers=workers) as pool:
        pool.open(rank, world_size)
        wait_until(lambda: len(pool.actors) == workers + 1, 120)
        yield pool


@pytest.fixture(scope="session")
def pool_of_1(cluster: Any, wait_until: Any) -> Iterator[Any]:
    """A pool of one decoder."""
    with running_pool(1, 0, 1, wait_until) as pool:
        yield pool


@pytest.fixture(scope="session")
def pool_of_3(cluster: Any, wait_until: Any) -> Iterator[Any]:
    """A pool of three decoders, opened by the second of two ranks."""
    with running_pool(3, 1, 2, wait_until) as pool:
        yield pool
