"""Indexing on Ray: shards indexed by tasks all over the cluster, once for all ranks of a job.

The first rank to ask makes a named actor that indexes; all others find it and wait for the same answer. Rank 0 shows
the progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from rayingest.errors import IngestError, WorkerError
from rayingest.formats import get_format
from rayingest.formats.indexing import build_manifest, index_shard
from rayingest.plan.manifest import Manifest, ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.index_cache import IndexCache

_POLL_SECONDS = 0.2
_SHARDS_A_TASK = 8
_TRIES = 3
_CALLERS = 1024

Shards = Sequence[tuple[str, int]]
"""URLs and sizes."""

_log = logging.getLogger("rayingest")


def _index(
    format_name: str,
    storage: Storage,
    block_bytes: int,
    strict: bool,
    options: Mapping[str, Any],
    shards: Shards,
) -> list[ShardBlocks]:
    return [index_shard(format_name, storage, url, size, block_bytes, strict, options) for url, size in shards]


@ray.remote(num_cpus=0, max_retries=3)
def _elsewhere(index: Callable[[Shards], list[ShardBlocks]], shards: Shards) -> list[ShardBlocks]:
    return index(shards)


class _Indexer:
    """Makes one manifest, on the first call of `build`; every call gets it."""

    def __init__(self, cache: IndexCache) -> None:
        self._cache = cache
        self._done = 0

    def progress(self) -> int:
        """Shards indexed so far."""
        return self._done

    def build(self) -> Manifest:
        """The manifest: kept, or made and then kept."""
        with self._cache.locked():
            manifest = self._cache.load()
            if manifest is None:
                manifest = self._make()
                self._cache.save(manifest)
        return manifest

    def _make(self) -> Manifest:
        cache, listing = self._cache, self._cache.listing
        shards = [(listing.url(i), int(listing.sizes[i])) for i in range(len(listing))]
        index = partial(_index, cache.format_name, cache.storage, cache.block_bytes, cache.strict, cache.options)
        together = _SHARDS_A_TASK if get_format(cache.format_name).opens_shards else len(shards)
        if len(shards) <= together:  # done before another worker has started
            return build_manifest(listing, index(shards))
        parts = [shards[i : i + together] for i in range(0, len(shards), together)]
        waiting = [_elsewhere.remote(index, part) for part in parts]
        order = {ref: i for i, ref in enumerate(waiting)}
        blocks: list[list[ShardBlocks]] = [[] for _ in parts]
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1)
            blocks[order[ready[0]]] = ray.get(ready[0])
            self._done += len(parts[order[ready[0]]])
        return build_manifest(listing, [one for some in blocks for one in some])


def index_on_cluster(cache: IndexCache, rank: int, progress: Callable[[int, int], None]) -> Manifest:
    """The manifest, kept or made by the cluster. Raises what indexing raised."""
    for attempt in range(1, _TRIES + 1):
        kept = cache.load()  # again after a failure: whoever ended may have had it made
        if kept is not None:
            return kept
        try:
            return _ask(cache, rank, progress)
        except RayActorError as error:  # its owner, another rank, may have ended
            if attempt == _TRIES:
                raise WorkerError(f"indexing died {attempt} times; lastly: {error}") from error
        except RayTaskError as error:
            if isinstance(error.cause, IngestError):
                raise error.cause from None
            raise
    raise AssertionError("unreachable")


def _ask(cache: IndexCache, rank: int, progress: Callable[[int, int], None]) -> Manifest:
    name = f"rayingest:index:{cache.key}"
    options = {"name": name, "get_if_exists": True, "num_cpus": 0, "max_concurrency": _CALLERS}
    indexer = ray.remote(_Indexer).options(**options).remote(cache)
    answer = indexer.build.remote()
    total = len(cache.listing)
    if rank:
        _log.info("waiting for the index of %d shards", total)
    while True:
        try:
            manifest: Manifest = ray.get(answer, timeout=_POLL_SECONDS)
        except GetTimeoutError:
            if not rank:
                progress(ray.get(indexer.progress.remote()), total)
        else:
            if not rank:
                progress(total, total)
            return manifest
