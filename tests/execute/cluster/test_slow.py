"""Where nothing is heard for long, the log says what is being done or waited for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rayingest as ri
from rayingest.build.scan import make
from rayingest.execute.cluster.status import describe_failed, describe_wait
from rayingest.plan.dispatch import events as ev
from rayingest.util import slow
from rayingest.util.slow import log_if_slow
from tests.support.streams import images, write_shards
from tests.support.web import WebServer, web

__all__ = ["web"]


class Heard(logging.Handler):
    """Keeps what is said; `again` is set by the second line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.again = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if len(self.lines) > 1:
            self.again.set()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """What the log says, which soon finds that a wait is long."""
    monkeypatch.setattr(slow, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(slow, "AGAIN_SECONDS", 0.01)
    handler = Heard()
    logging.getLogger("rayingest").addHandler(handler)
    yield handler
    logging.getLogger("rayingest").removeHandler(handler)


def test_what_takes_long_is_told_again_and_again_until_it_is_done(heard: Heard) -> None:
    """With how long it has been, and what there is to say by then."""
    words = iter(["one", "two", *["three"] * 10**6])
    with log_if_slow(lambda: next(words)):
        assert heard.again.wait(10)
    assert heard.lines[0].endswith("s so far: one")
    assert heard.lines[1].endswith("s so far: two")
    assert not any(thread.name == "rayingest-slow" for thread in threading.enumerate())


class Slow:
    """A scan of three parts, the last of which waits to be heard of."""

    name, key, is_light = "index", "test-silence", True

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def load(self) -> None:
        pass

    def save(self, value: int) -> None:
        pass

    def parts(self) -> Sequence[Callable[[], Any]]:
        return [lambda: 1, lambda: 1, lambda: self._heard.again.wait(10)]

    def join(self, results: Sequence[Any]) -> int:
        return len(results)


def test_making_an_index_is_told_part_by_part(heard: Heard) -> None:
    """On no terminal too, where there is no bar."""
    assert make(Slow(heard), 0, on_ray=False) == 3
    assert any(line.endswith("making the index: 2 of 3 parts are done") for line in heard.lines)


def test_waiting_for_another_process_that_makes_the_index_is_told(heard: Heard) -> None:
    """While its lock is held elsewhere."""
    from rayingest.storage.index_cache import node_lock

    scan, held, done = Slow(heard), threading.Event(), threading.Event()

    def other() -> None:
        with node_lock(scan.key):
            held.set()
            done.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(10)
    threading.Thread(target=lambda: (heard.again.wait(10), done.set())).start()
    make(scan, 0, on_ray=False)
    thread.join()
    assert heard.lines[0].endswith("waiting for the index, which another process or rank is making")


def test_waiting_for_storage_is_told(
    web: WebServer,
    pool_of_1: ri.Pool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The samples from which the fields are learnt, and the reads under way, since when and of what."""
    write_shards(tmp_path, [20])
    web.files["/s.tar"] = (tmp_path / "s-0000.tar").read_bytes()
    data = images(f"{web.url}/s.tar", 10)
    with data.loader(workers=0):
        web.delay = 0.5
    for wait in ("FIRST_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(slow, wait, 0.5)
    with data.loader(pool=pool_of_1, epochs=1) as loader:
        next(iter(loader))
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("no batch for")
    ]
    assert any(
        "waiting for the first samples, from which a decoder learns the fields" in line
        for line in lines
    ), lines
    assert any(
        "read(s) running, the oldest for" in line and line.endswith("/s.tar") for line in lines
    ), lines


@pytest.mark.parametrize(
    ("lack", "words"),
    [
        ("read", "blocks being read"),
        ("room", "blocks being read, which have room in the object store reserved for them"),
        ("workers", "a worker to come"),
        ("", "the next event"),
    ],
)
def test_what_the_batch_due_lacks_is_told(lack: str, words: str) -> None:
    """With the oldest read, not the first."""
    calls = [
        SimpleNamespace(command=ev.Read(n, "r", (n,), 1), begun=time.monotonic() - 10 * n)
        for n in range(3)
    ]
    pool = SimpleNamespace(workers=1, count=lambda role: 1)
    stream = SimpleNamespace(place=lambda block: (f"shard {block}", 0))
    told = describe_wait(lack, pool, stream, calls, learning=False)  # type: ignore[arg-type]
    assert (
        told == f"{words}; 1 of 1 decoders run; 3 read(s) running, the oldest for 20 s, of shard 2"
    )


def test_what_a_stream_ended_of_is_named_as_far_as_it_is_known() -> None:
    """All shards that it can be in, up to three; where it is one sample, that and its own."""
    stream: Any = SimpleNamespace(place=lambda block: (f"shard {block // 2}", 0))
    samples: Any = SimpleNamespace(block=[2, 9], ordinal=[20, 95])

    def failed(*blocks: int, row: tuple[int, int] | None = None) -> str:
        return describe_failed(
            ev.Fail("tried", blocks, OSError(), row), stream, [samples, None].__getitem__
        )

    assert failed(0, 1) == "one of the samples in shard 0"
    assert failed(0, 1, 2, 4) == "one of the samples in shard 0, shard 1, shard 2"
    assert failed(*range(8)) == "one of the samples in shard 0, shard 1, shard 2 or 1 other"
    assert failed(*range(10)) == "one of the samples in shard 0, shard 1, shard 2 or 2 others"
    assert failed(9, row=(0, 1)) == "sample 95, in shard 4"
