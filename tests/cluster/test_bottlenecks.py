"""A bottleneck that was planted is named, and what is advised against it removes it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.dataset import Dataset
from rayingest.observe.diagnose import WAIT_SHARE, Diagnosis, diagnose
from rayingest.plan.metrics import between
from tests.streams import write_shards
from tests.web import WebServer, web

__all__ = ["web"]

BATCH = 20


def slow(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform of 5 ms."""
    time.sleep(0.005)
    return {"i": sample["json"]["i"]}


def number(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform of no time."""
    return {"i": sample["json"]["i"]}


def described(urls: Any, transform: Any, window: int = 60, block_bytes: int = 4096) -> Dataset:
    data = ri.read_webdataset(urls, block_bytes=block_bytes).select(json="json").map(transform)
    return data.shuffle(seed=1, window=window).batch(BATCH)


def diagnosed(data: Dataset, *, step: float, steps: int = 16, skipped: int = 4, **options: Any) -> Diagnosis:
    """The diagnosis of a loop with steps of so many seconds, after its first batches."""
    with data.loader(**options) as loader:
        running = iter(loader)
        for _ in range(skipped):
            next(running)
            time.sleep(step)
        before, begun = loader.figures(), time.monotonic()
        for _ in range(steps):
            next(running)
            time.sleep(step)
        found = diagnose(between(before, loader.figures(), time.monotonic() - begun))
        assert loader.stats()["bottleneck"]
    return found


def found_to_be(bottleneck: str, data: Dataset, **how: Any) -> Diagnosis:
    """The first of three diagnoses that says so, or the last: a busy machine is a bottleneck of its own."""
    for _ in range(3):
        found = diagnosed(data, **how)
        if found.bottleneck == bottleneck:
            break
    assert found.bottleneck == bottleneck, found
    return found


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_shards(tmp_path_factory.mktemp("many"), [100] * 4, side=2)


def test_slow_decoding(many: str, pool_of_1: ri.Pool, pool_of_3: ri.Pool) -> None:
    """100 ms of decoding for steps of 60 ms: more workers, which help."""
    data = described(many, slow)
    found = found_to_be("decode", data, step=0.06, pool=pool_of_1)
    assert found.settings["workers"] in {2, 3}
    again = (diagnosed(data, step=0.06, skipped=8, steps=8, pool=pool_of_3) for _ in range(3))
    assert any(better.share < found.share for better in again)


def test_slow_decoding_in_the_calling_process(many: str) -> None:
    """Without Ray the same figures, and the same words."""
    found = found_to_be("decode", described(many, slow), step=0.01, steps=4, skipped=1, workers=0)
    assert found.settings["workers"] > 1


def test_slow_consumer(many: str, pool_of_1: ri.Pool) -> None:
    """Nothing is short where the loop is the slowest."""
    found = found_to_be("consumer", described(many, number), step=0.06, steps=8, pool=pool_of_1)
    assert not found.settings
    assert found.share < WAIT_SHARE


def test_slow_storage(many: str, web: WebServer, pool_of_1: ri.Pool) -> None:
    """Every request takes 0.3 s, and a window has more of them than readers have threads."""
    for path in sorted(Path(many).parent.glob("*.tar")):
        web.files[f"/{path.name}"] = path.read_bytes()
    data = described([f"{web.url}{name}" for name in web.files], number, window=20, block_bytes=2048)
    with data.loader(workers=0):
        web.delay = 0.3  # from here on, the index is there
    found_to_be("storage", data, step=0.005, steps=12, pool=pool_of_1)


def test_tiny_budget(tmp_path: Path, pool_of_1: ri.Pool) -> None:
    """A window of 1 MB in 220 kB; what is advised, asked for again as long as it is, removes it."""
    urls = write_shards(tmp_path, [100] * 4, side=42)
    data = ri.read_webdataset(urls, block_bytes=64 << 10).decode(png=ri.images.CenterCrop(40))
    data = data.shuffle(seed=1, window=200, lanes=1).batch(BATCH)
    found = found_to_be("memory budget", data, step=0.05, steps=6, skipped=1, pool=pool_of_1, max_bytes=220_000)
    before = found.share
    while found.bottleneck == "memory budget":
        assert found.settings["max_bytes"] <= 16 << 20
        found = diagnosed(data, step=0.05, steps=6, pool=pool_of_1, **found.settings)
    assert found.share < before, found
