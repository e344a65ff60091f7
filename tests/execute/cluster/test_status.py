"""What a stream waits for, and what ended it, in words."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rayingest as ri
from rayingest.execute.cluster.status import describe_failed, describe_wait
from rayingest.plan.dispatch import events as ev
from rayingest.util import slow
from tests.support.streams import images, write_shards
from tests.support.web import WebServer, web

__all__ = ["web"]


def test_waiting_for_storage_is_logged(
    web: WebServer,
    pool_of_1: ri.Pool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The samples to learn the fields from, and the running reads: how long they take, of what."""
    write_shards(tmp_path, [20])
    web.files["/s.tar"] = (tmp_path / "s-0000.tar").read_bytes()
    data = images(f"{web.url}/s.tar", 10)
    with data.loader(workers=0):
        web.delay = 0.5
    for wait in ("FIRST_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(slow, wait, 0.5)
    with data.loader(pool=pool_of_1, epochs=1) as loader:
        next(iter(loader))
    messages = [record.getMessage() for record in caplog.records]
    lines = [message for message in messages if message.startswith("no batch for")]
    learning = "waiting for the first samples, from which a decoder learns the fields"
    assert any(learning in line for line in lines), lines
    assert any(
        "read(s) running, the oldest for" in line and line.endswith("/s.tar") for line in lines
    ), lines


@pytest.mark.parametrize(
    ("lack", "words"),
    [
        ("read", "blocks being read"),
        ("room", "blocks being read, which have room in the object store reserved for them"),
        ("workers", "a worker to start"),
        ("", "the next event"),
    ],
)
def test_the_lack_of_the_batch_due_is_named_with_the_oldest_read(lack: str, words: str) -> None:
    """Not with the first read that was sent."""
    calls = [
        SimpleNamespace(command=ev.Read(n, "r", (n,), 1), begun=time.monotonic() - 10 * n)
        for n in range(3)
    ]
    pool = SimpleNamespace(workers=1, count=lambda role: 1)
    stream = SimpleNamespace(location=lambda block: (f"shard {block}", 0))
    status = describe_wait(lack, pool, stream, calls, learning=False)  # type: ignore[arg-type]
    rest = "1 of 1 decoders run; 3 read(s) running, the oldest for 20 s, of shard 2"
    assert status == f"{words}; {rest}"


def test_the_failed_sample_or_the_shards_it_can_be_in_are_named() -> None:
    """Up to three shards, and how many more there are."""
    stream: Any = SimpleNamespace(location=lambda block: (f"shard {block // 2}", 0))
    samples: Any = SimpleNamespace(block=[2, 9], ordinal=[20, 95])

    def failed(*blocks: int, row: tuple[int, int] | None = None) -> str:
        command = ev.Fail("failed", blocks, OSError(), row)
        return describe_failed(command, stream, [samples, None].__getitem__)

    assert failed(0, 1) == "one of the samples in shard 0"
    assert failed(0, 1, 2, 4) == "one of the samples in shard 0, shard 1, shard 2"
    assert failed(*range(8)) == "one of the samples in shard 0, shard 1, shard 2 or 1 other"
    assert failed(*range(10)) == "one of the samples in shard 0, shard 1, shard 2 or 2 others"
    assert failed(9, row=(0, 1)) == "sample 95, in shard 4"
