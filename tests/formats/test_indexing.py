"""From a listing to a manifest."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rayingest.errors import ConfigError, DataError
from rayingest.formats import FORMATS, get_format
from rayingest.formats.protocol import IndexScan, Shard, build_manifest, index_shard
from rayingest.plan.order.manifest import Manifest
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, list_shards
from rayingest.storage.scan import IndexCache, run_parts

SUFFIXES = get_format("json_lines").suffixes


def write(folder: Path, counts: list[int]) -> None:
    for i, count in enumerate(counts):
        (folder / f"{i}.jsonl").write_bytes(b"".join(b"%d\n" % j for j in range(count)))


def indexed(listing: Listing, **kwargs: Any) -> Manifest:
    scan = IndexScan(IndexCache(listing, "json_lines", 20), get_format("json_lines"))
    return scan.join(run_parts(scan.parts(), **kwargs))


def test_shards_are_joined_in_order_whatever_the_threads(tmp_path: Path) -> None:
    """An empty shard adds nothing; progress ends at the total."""
    write(tmp_path, [5, 0, 40, 1])
    listing = list_shards(tmp_path, suffixes=SUFFIXES)
    steps: list[tuple[int, int]] = []
    manifest = indexed(listing, progress=lambda done, total: steps.append((done, total)))
    assert manifest.num_samples == 46
    assert [int(manifest.samples[manifest.shard == i].sum()) for i in range(4)] == [5, 0, 40, 1]
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert indexed(listing, threads=1).fingerprint == manifest.fingerprint


def test_a_copy_elsewhere_has_the_same_fingerprint(tmp_path: Path) -> None:
    """A run can be resumed on a copy."""
    write(tmp_path, [5, 7])
    fs = fsspec.filesystem("memory")
    for path in tmp_path.iterdir():
        fs.pipe_file(f"/copied/{path.name}", path.read_bytes())
    local, copied = (list_shards(url, suffixes=SUFFIXES) for url in (tmp_path, "memory://copied"))
    assert indexed(local).fingerprint == indexed(copied).fingerprint


def test_no_sample_at_all_is_an_error(tmp_path: Path) -> None:
    """A dataset without samples cannot be trained on."""
    write(tmp_path, [0, 0])
    with pytest.raises(ConfigError, match="no sample in any of the 2 shards"):
        indexed(list_shards(tmp_path, suffixes=SUFFIXES))
    with pytest.raises(ValueError, match="0 shards indexed of 2"):
        build_manifest(list_shards(tmp_path, suffixes=SUFFIXES), [])


def test_a_damaged_shard_ends_it_with_its_name(tmp_path: Path) -> None:
    """The error names the shard; there is no dataset without it."""
    write(tmp_path, [3] * 20)
    (tmp_path / "7.jsonl.gz").write_bytes(gzip.compress(b"1\n")[:-3])
    with pytest.raises(DataError) as caught:
        indexed(list_shards(tmp_path, suffixes=SUFFIXES))
    assert caught.value.shard == f"{tmp_path}/7.jsonl.gz"


@pytest.mark.parametrize("name", FORMATS)
def test_unknown_options_and_missing_shards_are_named(name: str, tmp_path: Path) -> None:
    """Every format refuses unknown options and names missing shards."""
    with pytest.raises(ConfigError, match=f"unknown option 'nope' for format '{name}'; allowed: "):
        index_shard(get_format(name), Shard(Storage(), "/x", 1, options={"nope": 1}), 1)
    if get_format(name).opens_shards and name != "iterables":  # whose shards are no files
        with pytest.raises(DataError, match="does not exist"):
            index_shard(get_format(name), Shard(Storage(), str(tmp_path / "x"), 1), 1)


def test_a_shard_that_was_written_again_makes_the_cached_index_stale(tmp_path: Path) -> None:
    """A later modification time makes an index stale, even with the same size."""
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", [5])

    def cache() -> IndexCache:
        listing = list_shards(tmp_path / "data", suffixes=SUFFIXES)
        return IndexCache(listing, "json_lines", 20, index=f"{tmp_path}/index/")

    cache().save(indexed(cache().listing))
    assert cache().load() is not None
    shard = tmp_path / "data" / "0.jsonl"
    later = shard.stat().st_mtime_ns + 1000
    shard.write_bytes(b"0123456789")
    os.utime(shard, ns=(later, later))
    assert cache().load() is None
