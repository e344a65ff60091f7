"""A planted bottleneck is named, and the advice removes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset
from rayingest.monitor.diagnose import WAIT_SHARE, Diagnosis, diagnose, diagnose_ranks
from rayingest.plan.figures.metrics import Snapshot, take_snapshot
from tests.support.streams import number, slow, write_shards
from tests.support.web import WebServer, web

__all__ = ["web"]

BATCH = 20
TRIES = 5

pytestmark = pytest.mark.statistical


def slower(sample: dict[str, Any]) -> dict[str, Any]:
    """Sleep 20 ms."""
    time.sleep(0.02)
    return {"i": sample["json"]["i"]}


def described(
    urls: Any, transform: Any, window: int = 60, block_bytes: int = 4096, **read: Any
) -> Dataset:
    data = (
        ri.read_webdataset(urls, block_bytes=block_bytes, **read).select(json="json").map(transform)
    )
    return data.shuffle(seed=1, window=window).batch(BATCH)


def diagnosed(
    data: Dataset, *, step: float, steps: int = 16, skipped: int = 4, **options: Any
) -> Diagnosis:
    """Return the diagnosis of a loop with steps of `step` seconds, after its first batches."""
    with data.loader(**options) as loader:
        running = iter(loader)
        for _ in range(skipped):
            next(running)
            time.sleep(step)
        before, begun = loader.figures(), time.monotonic()
        for _ in range(steps):
            next(running)
            time.sleep(step)
        found = diagnose(take_snapshot(before, loader.figures(), time.monotonic() - begun))
        assert loader.stats()["bottleneck"]
    return found


def found_to_be(bottleneck: str, data: Dataset, **how: Any) -> Diagnosis:
    """Repeat a diagnosis until it names this bottleneck, at most `TRIES` times: other work is a
    bottleneck too.
    """
    for _ in range(TRIES):
        found = diagnosed(data, **how)
        if found.bottleneck == bottleneck:
            break
    assert found.bottleneck == bottleneck, found
    return found


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_shards(tmp_path_factory.mktemp("many"), [100] * 4, side=2)


def test_slow_decoding(many: str, pool_of_1: ri.Pool, pool_of_3: ri.Pool) -> None:
    """100 ms of decoding for steps of 60 ms: more workers remove the wait."""
    data = described(many, slow)
    found = found_to_be("decode", data, step=0.06, pool=pool_of_1)
    assert found.settings["workers"] in {2, 3}
    found_to_be("consumer", data, step=0.06, skipped=8, steps=8, pool=pool_of_3)


def test_slow_decoding_in_the_calling_process(many: str) -> None:
    """Without Ray the figures and words are the same."""
    found = found_to_be("decode", described(many, slow), step=0.01, steps=4, skipped=1, workers=0)
    assert found.settings["workers"] > 1


def test_slow_consumer(many: str, pool_of_1: ri.Pool) -> None:
    """The diagnosis is "consumer" if the loop is slowest."""
    found = found_to_be("consumer", described(many, number), step=0.06, steps=8, pool=pool_of_1)
    assert not found.settings
    assert found.share < WAIT_SHARE


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> str:
    """More batches than are read ahead and ready together."""
    return write_shards(tmp_path_factory.mktemp("more"), [220] * 4, side=2)


@pytest.fixture
def slow_web(more: str, web: WebServer) -> Callable[..., Dataset]:
    """Data behind requests of 0.3 s; the index exists."""
    for path in sorted(Path(more).parent.glob("*.tar")):
        web.files[f"/{path.name}"] = path.read_bytes()

    def make(**read: Any) -> Dataset:
        data = described([f"{web.url}{name}" for name in web.files], number, window=20, **read)
        web.delay = 0.0
        with data.loader(workers=0):
            web.delay = 0.3
        return data

    return make


def test_slow_storage(slow_web: Callable[..., Dataset], pool_of_1: ri.Pool) -> None:
    """A window needs more requests than a reader has threads: larger blocks remove the wait."""
    found = found_to_be("storage", slow_web(block_bytes=2048), step=0.005, steps=36, pool=pool_of_1)
    assert "cache_dir" in found.advice
    found_to_be("consumer", slow_web(**found.settings), step=0.005, steps=12, pool=pool_of_1)


def test_a_cache_against_slow_storage(
    slow_web: Callable[..., Dataset], web: WebServer, pool_of_1: ri.Pool, tmp_path: Path
) -> None:
    """Data that was read before comes from the disk cache, however slow the storage is."""
    data = slow_web(block_bytes=2048, cache_dir=tmp_path, cache_bytes=8 << 20)
    web.delay = 0.0
    with data.loader(pool=pool_of_1, epochs=1) as loader:
        for _ in loader:
            pass
    web.delay = 0.3
    found_to_be("consumer", data, step=0.06, steps=8, pool=pool_of_1)


def test_a_slow_rank(many: str, pool_of_1: ri.Pool, pool_of_3: ri.Pool) -> None:
    """Of two ranks in step, the one with too few decoders is named, and the advice helps."""
    data = described(many, slower)
    for _ in range(TRIES):
        found = diagnose_ranks(in_step(data, [pool_of_3, pool_of_1]))
        if (
            found.evidence.startswith("rank 1 waits")
            and "its bottleneck is decode" in found.evidence
        ):
            break
    assert found.bottleneck == "slow rank", found
    assert found.settings["workers"] in {2, 3}, found
    better = (diagnose_ranks(in_step(data, [pool_of_3, pool_of_3])) for _ in range(TRIES))
    assert any(again.bottleneck == "consumer" for again in better)


def in_step(
    data: Dataset, pools: list[ri.Pool], step: float = 0.12, steps: int = 10
) -> dict[str, Snapshot]:
    """Return the snapshots of ranks that wait for each other after every step."""
    together = threading.Barrier(len(pools), timeout=30)

    def train(rank: int) -> Snapshot:
        with data.loader(rank=rank, world_size=len(pools), pool=pools[rank]) as loader:
            running = iter(loader)
            for number in range(4 + steps):
                next(running)
                time.sleep(step)
                together.wait()
                if number == 3:
                    before, begun = loader.figures(), time.monotonic()
            return take_snapshot(before, loader.figures(), time.monotonic() - begun)

    with ThreadPoolExecutor(len(pools)) as threads:
        return dict(
            zip(map(str, range(len(pools))), threads.map(train, range(len(pools))), strict=True)
        )


def test_tiny_budget(tmp_path: Path, pool_of_1: ri.Pool) -> None:
    """A window of 1 MB in 220 kB: following the advice until it ends removes the wait."""
    urls = write_shards(tmp_path, [100] * 4, side=42)
    data = ri.read_webdataset(urls, block_bytes=64 << 10).decode(png=ri.images.CenterCrop(40))
    data = data.shuffle(seed=1, window=200, lanes=1).batch(BATCH)
    found = found_to_be(
        "memory budget", data, step=0.05, steps=6, skipped=1, pool=pool_of_1, max_bytes=220_000
    )
    while found.bottleneck == "memory budget":
        advised = found.settings
        assert advised["max_bytes"] <= 16 << 20
        found = diagnosed(data, step=0.05, steps=6, pool=pool_of_1, **advised)
    found_to_be("consumer", data, step=0.05, steps=6, pool=pool_of_1, **advised)
