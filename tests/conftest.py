"""What all tests share: property tests draw the same cases on every run; one Ray cluster and two
pools of workers on it serve all who need them.
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
from hypothesis import HealthCheck, settings

# A token file in the home of whoever runs this would make Ray ask for authentication.
os.environ["RAY_AUTH_MODE"] = "disabled"
# For all processes that tests start, Ray's workers among them: they find the tests' modules, and
# compile modules once.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# What is exported is there soon, where a test waits for it; Ray's own pace is 10 s.
os.environ["RAY_metrics_report_interval_ms"] = "1000"  # noqa: SIM112 - so spelt by Ray
# So often Ray Train looks at its ranks, which it does not let report more often; its own pace is 2
# s.
os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.2"
# An actor of Ray Train's that looks for nodes about to be taken away, of which there are none.
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


def pytest_collection_finish() -> None:
    """What the imports left stays: no collection goes through it again, which would take a third of
    a second each.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Indexes are kept in a folder of this run's, in this process and in all that it starts."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Indexes are written by the hundred; none must outlive a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def cluster(cache_home: Path) -> Iterator[Any]:
    """A Ray cluster of one node with more CPUs than there are."""
    import ray

    ray.init(
        "local",  # whatever other cluster there may be
        num_cpus=12,
        object_store_memory=400 << 20,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """Waits until something holds, and fails after a deadline."""

    def wait(holds: Callable[[], object], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not within {seconds:g} s"
            time.sleep(0.02)

    return wait


@contextmanager
def running_pool(
    workers: int, rank: int, world_size: int, wait_until: Callable[..., None]
) -> Iterator[Any]:
    """A pool all of whose actors run: the decoders and a reader."""
    import rayingest as ri

    with ri.Pool(workers=workers) as pool:
        pool.open(rank, world_size)
        wait_until(lambda: len(pool.actors) == workers + 1, 120)
        yield pool


@pytest.fixture(scope="session")
def pool_of_1(cluster: Any, wait_until: Any) -> Iterator[Any]:
    """One decoder."""
    with running_pool(1, 0, 1, wait_until) as pool:
        yield pool


@pytest.fixture(scope="session")
def pool_of_3(cluster: Any, wait_until: Any) -> Iterator[Any]:
    """Three decoders, asked for by the second of two ranks."""
    with running_pool(3, 1, 2, wait_until) as pool:
        yield pool
