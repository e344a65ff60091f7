"""The disk cache keeps its limit and its bytes, whatever processes do and however they end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import rayingest as ri
from rayingest.storage.disk_cache import DiskCache
from tests.storage.cache_user import BLOCK, BLOCKS
from tests.support.streams import images, run, write_shards
from tests.support.web import WebServer


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in {".range", ".writing"}]


def size_of(folder: Path) -> int:
    total = 0
    for path in kept(folder):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_the_limit_and_every_byte_hold_while_processes_are_killed(tmp_path: Path) -> None:
    """Four processes read five times the limit; two are killed, without harm."""
    limit = BLOCK * BLOCKS // 5
    user = str(Path(__file__).with_name("cache_user.py"))

    def start(seed: int, rounds: int) -> subprocess.Popen[str]:
        command = [sys.executable, user, str(tmp_path), str(limit), str(seed), str(rounds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    processes = [start(seed, 100 if seed < 2 else 10**9) for seed in range(4)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        most = 0
        while any(process.poll() is None for process in processes[:2]):
            most = max(most, size_of(tmp_path))
            if most > limit // 2:
                for process in processes[2:]:
                    process.kill()
            time.sleep(0.002)
        assert [process.wait(60) for process in processes] == [0, 0, -9, -9]
    finally:
        for process in processes:
            process.kill()
    assert limit // 2 < most <= limit + BLOCK
    cache = DiskCache(str(tmp_path), limit)
    cache.put("one more", b"x")
    assert size_of(tmp_path) <= limit
    assert not [path for path in kept(tmp_path) if path.suffix == ".writing"]


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    """A read counts as use; a range larger than the cache is not cached."""
    cache = DiskCache(str(tmp_path), 350)
    for name in "abc":
        cache.put(name, bytes(100))
        time.sleep(0.01)  # times of files are what tells
    assert cache.get("a") == bytes(100)
    cache.put("d", bytes(100))
    cache.put("large", bytes(400))
    assert [name for name in ("a", "b", "c", "d", "large") if cache.get(name) is not None] == [
        "a",
        "c",
        "d",
    ]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"x" + data[1:], lambda data: b""]
)
def test_damage_counts_as_absent(tmp_path: Path, damage: object) -> None:
    """A file that is cut off, changed, or of another range is removed."""
    cache = DiskCache(str(tmp_path), 10_000)
    cache.put("a", b"data of a")
    (path,) = kept(tmp_path)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert cache.get("a") is None
    assert not kept(tmp_path)


def test_a_folder_has_one_limit(tmp_path: Path) -> None:
    """Another limit is an error, and so is one option without the other."""
    DiskCache(str(tmp_path), 100).put("a", b"b")
    with pytest.raises(ri.ConfigError, match="was created with 100 bytes"):
        DiskCache(str(tmp_path), 200).put("a", b"b")
    with pytest.raises(ri.ConfigError, match="give both"):
        ri.read_json("x.jsonl", cache_dir=tmp_path)


def test_a_second_run_fetches_nothing_and_a_change_is_noticed(
    web: WebServer, tmp_path: Path
) -> None:
    """The second run only checks sizes and marks; changed shards are fetched again."""
    write_shards(tmp_path / "data", [20, 30])

    def put(name: str, path: Path) -> None:
        web.files[f"/{name}"] = path.read_bytes()

    shards = sorted((tmp_path / "data").glob("*.tar"))
    for path in shards:
        put(path.name, path)
    cache = {"cache_dir": tmp_path / "cache", "cache_bytes": 10 << 20}
    data = images(f"{web.url}/s-{{0000..0001}}.tar", 10, index=tmp_path / "far.arrow", **cache)
    first = run(data)[0]
    assert first == run(images(f"{tmp_path}/data/*.tar", 10, index=tmp_path / "near.arrow"))[0]
    web.requests.clear()
    assert run(data)[0] == first
    assert {request.split()[0] for request in web.requests} == {"HEAD"}
    with data.loader(workers=0) as loader:
        next(iter(loader))
        figures = loader.figures()
    assert (figures["cache_hits"] > 0, figures["cache_misses"]) == (True, 0)
    put(shards[0].name, shards[1])
    assert len(run(data)[0]) == 6


def test_a_folder_that_is_not_writable_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and the fetched data are still returned."""
    (tmp_path / "file").write_text("")
    cache = DiskCache(str(tmp_path / "file"), 1000)
    for key in ("a", "b"):
        assert cache.read_through(key, [(0, 2), (2, 4)], lambda spans: [b"xy" for _ in spans]) == [
            b"xy",
            b"xy",
        ]
    assert caplog.text.count("reading goes on without it") == 1
