"""Streams without end on Ray: the same as without it, whatever dies, waits or is small."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from tests.support.records import counts, follow, in_turn, numbers
from tests.support.streams import actors, rows

LENGTHS = [70, 31, 0, 52]
EXAMPLE = re.search(
    r"(?ms)^(def tail.*?)\n\n\n",
    (Path(__file__).parents[3] / "docs/interop.md").read_text(),
)


def test_it_is_what_one_process_gives(pool_of_3: ri.Pool) -> None:
    """Two ranks, from a state in the middle, up to the end and its state."""
    data = counts(LENGTHS, 8)
    whole, end = follow(data)
    first, state = follow(data, 2, pool=pool_of_3, steps=7)
    rest, again = follow(data, state=state, pool=pool_of_3)
    assert (first + rest, again) == (whole, end)


def test_workers_that_die_change_nothing(cluster: Any, pool_of_3: ri.Pool, wait_until: Any) -> None:
    """A reader, a decoder, and a reader again, while records arrive."""
    data = counts([300, 300, 300], 6)
    dies = {4: "reader", 30: "decoder", 60: "reader"}
    seen = []
    with data.loader(pool=pool_of_3, prefetch=1, max_bytes=40_000) as loader:
        for batch in loader:
            seen.append(rows(batch))
            if loader.step in dies:
                there: list[Any] = []
                wait_until(
                    lambda role=dies[loader.step], there=there: (
                        there.extend(_actors(pool_of_3, role)) or there
                    )
                )
                cluster.kill(there[0])
        stats = loader.stats()
    assert seen == follow(data)[0]
    assert stats["workers_lost"] == 3
    assert stats["peak_bytes"] <= 40_000


def _actors(pool: ri.Pool, role: str) -> list[Any]:
    """Return the Ray handles of a pool's actors with this role."""
    return [handle.actor for handle in pool.actors if handle.role == role]


def wide(name: int, offset: int | None) -> Any:
    """Records of 2 KB."""
    yield from (({"i": i, "text": f"{i:02000}"}, i + 1) for i in range(offset or 0, 240))


def test_a_small_budget_changes_nothing(pool_of_1: ri.Pool) -> None:
    """And is not exceeded."""
    data = ri.stream(wide).batch(8)
    with data.loader(pool=pool_of_1, max_bytes=90_000) as loader:
        seen = [rows(batch) for batch in loader]
        stats = loader.stats()
    assert seen == follow(data)[0]
    assert stats["peak_bytes"] <= 90_000


def test_a_loop_that_pauses_stops_the_reading(
    pool_of_1: ri.Pool, tmp_path: Path, wait_until: Any
) -> None:
    """After a limited number of steps; it continues with the loop."""
    pulled = tmp_path / "pulled"
    with counts([1 << 40], 256, pulled).loader(pool=pool_of_1) as loader:
        batches = iter(loader)
        next(batches)
        at, since = 0, time.monotonic()

        def is_still() -> bool:
            nonlocal at, since
            if (now := pulled.stat().st_size) != at:
                at, since = now, time.monotonic()
            return time.monotonic() - since > 1.0

        wait_until(is_still, 60)
        assert at <= (16 + 16 + 32 + 5) * 256  # read, in the reader, ready for the loop
        for _ in range(20):
            next(batches)
        wait_until(lambda: pulled.stat().st_size > at)


def test_a_source_that_raises_is_an_error_at_its_step(pool_of_1: ri.Pool) -> None:
    """It names partition and offset; the loop can continue once the source works again."""

    def broken(name: str, offset: int | None) -> Any:
        yield from (({"x": i}, i + 1) for i in range(offset or 0, 9))
        raise RuntimeError("no broker")

    with ri.stream(broken, partitions=["a", "b"]).batch(4).loader(pool=pool_of_1) as loader:
        batches = iter(loader)
        assert [next(batches)["x"].tolist() for _ in range(4)][-1] == [6, 6, 7, 7]
        for _ in range(2):
            with pytest.raises(
                ri.DataError, match=r"RuntimeError: no broker.* \[shard .*broken/a, offset 9\]"
            ):
                next(batches)
            batches = iter(loader)
        assert loader.stats()["retries"] == 0


def test_a_log_is_followed_while_it_grows(place: dict[str, Any], tmp_path: Path) -> None:
    """The example of docs/interop.md: each batch comes with its last line; a state resumes it."""
    assert EXAMPLE is not None
    names: dict[str, Any] = {"json": json, "time": time}
    exec(EXAMPLE[1], names)
    paths = [tmp_path / "clicks-0.jsonl", tmp_path / "clicks-1.jsonl"]

    def write(*lines: str) -> None:
        for path in paths:
            with path.open("a") as log:
                log.write("".join(lines))

    write('{"x": 1}\n', '{"x": 2}\n', '{"x"')
    clicks = ri.stream(names["tail"], partitions=list(map(str, paths))).batch(4)
    with clicks.loader(**place) as loader:
        batches = iter(loader)
        assert next(batches)["x"].tolist() == [1, 1, 2, 2]
        state = loader.state_dict()
        assert state["offsets"] == dict.fromkeys(map(str, paths), 18)
        write(": 3}\n", '{"x": 4}\n')
        assert next(batches)["x"].tolist() == [3, 3, 4, 4]
        loader.load_state_dict(state)  # while nothing comes
        again = iter(loader)
        assert next(again)["x"].tolist() == [3, 3, 4, 4]
        write('{"x": 5}\n', '{"x": 6}\n')
        assert next(again)["x"].tolist() == [5, 5, 6, 6]


def test_a_pool_works_on_after_a_stream_that_waits(
    pool_of_1: ri.Pool, cluster: Any, tmp_path: Path
) -> None:
    """A loader that is closed while its source is silent frees the workers."""

    def silent(name: int, offset: int | None) -> Any:
        yield {"x": 1}, 1
        while True:
            time.sleep(0.02)
            yield None

    before = set(actors(cluster))
    with ri.stream(silent).batch(1).loader(pool=pool_of_1) as loader:
        assert next(iter(loader))["x"].tolist() == [1]
    lengths = [9, 9]
    with counts(lengths, 2).loader(pool=pool_of_1) as loader:
        assert [record for batch in loader for record in numbers(batch)] == in_turn(lengths)
    assert set(actors(cluster)) == before
