"""From a listing of shards to the manifest: each shard indexed on its own, in any order and anywhere, then joined.

`index_shard` is a pure function of its arguments and of the shard, so it runs in a thread here and in a task
elsewhere alike. Keeping a manifest is the business of `storage.index_cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from rayingest.errors import ConfigError
from rayingest.formats import get_format
from rayingest.formats.protocol import Shard, check_options
from rayingest.plan.manifest import Manifest, ShardBlocks
from rayingest.storage.files import Storage
from rayingest.storage.redact import redact
from rayingest.storage.urls import Listing


def index_shard(
    format_name: str, storage: Storage, url: str, size: int, block_bytes: int, strict: bool, options: Mapping[str, Any]
) -> ShardBlocks:
    """The blocks of one shard. DataError when it is damaged or not of `size` bytes any more."""
    format_ = get_format(format_name)
    check_options(format_, options)
    with storage.reading(url, "index"):
        return format_.index(Shard(storage, url, size, strict, options), block_bytes)


def build_manifest(listing: Listing, blocks_per_shard: Sequence[ShardBlocks]) -> Manifest:
    """The manifest of all shards, in the order of the listing; ConfigError when there is no sample in any."""
    if len(blocks_per_shard) != len(listing):
        raise ValueError(f"{len(blocks_per_shard)} shards indexed of {len(listing)} listed")
    manifest = Manifest.join(listing.root, listing.paths, listing.sizes, listing.marks, blocks_per_shard)
    if not manifest.num_samples:
        raise ConfigError(f"no sample in any of the {len(listing)} shards in {redact(listing.root)}")
    return manifest


def index_locally(
    listing: Listing,
    format_name: str,
    storage: Storage,
    *,
    block_bytes: int,
    strict: bool = True,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    threads: int = 8,
) -> Manifest:
    """The manifest, made by threads of this process; `progress(done, total)` is called after each shard.

    The error of the first damaged shard in the listing's order among those seen ends it, and no further shard is begun.
    """
    total = len(listing)
    with ThreadPoolExecutor(max(1, min(threads, total)), "rayingest-index") as pool:
        jobs = [
            pool.submit(
                index_shard, format_name, storage, listing.url(i), listing.sizes[i], block_bytes, strict, options or {}
            )
            for i in range(total)
        ]
        try:
            for done, job in enumerate(as_completed(jobs), 1):
                if job.exception() is not None:
                    break
                if progress is not None:
                    progress(done, total)
        finally:
            for job in jobs:
                job.cancel()
    failed = [job for job in jobs if not job.cancelled() and job.exception() is not None]
    return build_manifest(listing, [job.result() for job in failed[:1] or jobs])
