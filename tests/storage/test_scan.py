"""A cached index is used while it is up to date, and never otherwise."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from rayingest.errors import ConfigError
from rayingest.plan.order.manifest import Manifest, ShardBlocks
from rayingest.storage import scan
from rayingest.storage.listing import Listing
from rayingest.storage.scan import IndexCache, node_lock

LISTING = Listing("/data/", ("a.tar", "b.tar"), (1000, 2000), ("17", "18"))


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(scan, "cache_folder", lambda: tmp_path / "home" / "rayingest" / "index")
    return tmp_path / "home" / "rayingest"


def manifest_of(listing: Listing) -> Manifest:
    blocks = [
        ShardBlocks(
            *(np.array(x, np.int64) for x in ([0, 500], [500, 900], [3, i + 1], [400, 300]))
        )
        for i in range(len(listing))
    ]
    return Manifest.join(listing.root, listing.paths, listing.sizes, listing.marks, blocks)


def cache_of(listing: Listing = LISTING, **kwargs: Any) -> IndexCache:
    return IndexCache(listing, "webdataset", 1 << 21, **kwargs)


@pytest.mark.parametrize(
    "where", ["default", "file", "folder", "new folder", "memory file", "memory folder"]
)
def test_what_is_saved_is_loaded(where: str, tmp_path: Path, cache_home: Path) -> None:
    """Holds in the cache folder, at a path or URL, and in a folder; no other file remains."""
    fsspec.filesystem("memory").store.clear()
    index = {
        "default": None,
        "file": str(tmp_path / "x" / "my.index"),
        "folder": str(tmp_path),
        "new folder": f"{tmp_path}/new/",
        "memory file": "memory://idx/my.index",
        "memory folder": "memory://idx/",
    }[where]
    cache = cache_of(index=index)
    assert cache.load() is None
    cache.save(manifest_of(LISTING))
    found = cache.load()
    assert found is not None
    assert found.fingerprint == manifest_of(LISTING).fingerprint
    assert (found.root, found.paths, found.marks) == (LISTING.root, LISTING.paths, LISTING.marks)
    if where.startswith("memory"):
        assert len(fsspec.filesystem("memory").find("/idx")) == 1
    else:
        assert len([path for path in Path(cache.location).parent.iterdir() if path.is_file()]) == 1
    assert where != "default" or cache.location.startswith(str(cache_home))


@pytest.mark.parametrize(
    "change", ["marks", "sizes", "paths", "block_bytes", "format", "strict", "options", "version"]
)
def test_any_change_makes_it_absent(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds too if the file is the same, as with `index=`."""
    index = str(tmp_path / "the.index")
    cache_of(index=index).save(manifest_of(LISTING))
    other = cache_of(index=index)
    if change in {"marks", "sizes", "paths"}:
        values = {"marks": ("17", "19"), "sizes": (1000, 2001), "paths": ("a.tar", "c.tar")}
        other = dataclasses.replace(
            other, listing=dataclasses.replace(LISTING, **{change: values[change]})
        )
    elif change == "version":
        monkeypatch.setattr(scan, "INDEX_VERSION", 2)
    else:
        name = {"format": "format_name"}.get(change, change)
        value = {
            "block_bytes": 5,
            "format": "parquet",
            "strict": False,
            "options": {"max_expansion": 9},
        }[change]
        other = dataclasses.replace(other, **{name: value})
    assert cache_of(index=index).load() is not None or change == "version"
    assert other.load() is None


def test_damaged_files_are_absent_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file cut anywhere, or with any byte changed, is never loaded."""
    cache = cache_of(index=str(tmp_path / "the.index"))
    cache.save(manifest_of(LISTING))
    path = Path(cache.location)
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole), 97)]
    damaged += [
        whole[:i] + bytes([whole[i] ^ 255]) + whole[i + 1 :] for i in range(41, len(whole), 41)
    ]
    for data in damaged:
        path.write_bytes(data)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "rayingest"):
            assert cache.load() is None
        assert "is built again" in caplog.text


def test_a_file_of_something_else_is_never_overwritten(tmp_path: Path) -> None:
    """A wrong path in `index` destroys nothing; in the cache folder, files are replaced."""
    path = tmp_path / "train.jsonl"
    path.write_text('{"mine": 1}')
    with pytest.raises(
        ConfigError, match=r"train\.jsonl is not a cached index of rayingest, and is left unchanged"
    ):
        cache_of(index=str(path)).load()
    assert path.read_text() == '{"mine": 1}'


def test_no_credentials_are_stored_and_signatures_may_change(tmp_path: Path) -> None:
    """The manifest has the listing's own URLs."""
    first = Listing("https://u:hunter2@h/d/", ("a.tar?sig=hunter2",), (5,), ("e",))
    second = Listing("https://u:other@h/d/", ("a.tar?sig=other",), (5,), ("e",))
    cache = cache_of(first)
    cache.save(manifest_of(first))
    assert b"hunter2" not in Path(cache.location).read_bytes()
    found = cache_of(second).load()
    assert found is not None
    assert found.url(0) == "https://u:other@h/d/a.tar?sig=other"


def test_unwritable_places_are_an_error_only_where_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`index=` must be writable, the default folder need not be."""
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match="cannot write the index to"):
        cache_of(index=str(tmp_path / "home" / "x.index")).save(manifest_of(LISTING))
    with caplog.at_level(logging.WARNING, "rayingest"):
        cache_of().save(manifest_of(LISTING))
    assert "the index is not cached" in caplog.text


def build_once(home: str, barrier: Any, built: Any) -> None:
    """Build the index as each process of a node does."""
    scan.cache_folder = lambda: Path(home)
    cache = cache_of()
    barrier.wait()
    with node_lock(cache.key):
        if cache.load() is None:
            built.put(1)
            cache.save(manifest_of(LISTING))
    assert cache.load() is not None


def test_of_several_processes_one_builds_and_the_others_reuse(tmp_path: Path) -> None:
    """Processes that start together build one index."""
    context = multiprocessing.get_context("fork")
    barrier, built = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=build_once, args=(str(tmp_path / "c"), barrier, built))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert built.get(timeout=5) == 1
    assert built.empty()


def test_a_lock_that_is_held_is_an_error_after_the_timeout() -> None:
    """Other keys stay free."""
    with (
        node_lock("k"),
        node_lock("other"),
        pytest.raises(ConfigError, match="more than 0 s"),
        node_lock("k", timeout=0),
    ):
        pass
    with node_lock("k", timeout=0):
        pass
