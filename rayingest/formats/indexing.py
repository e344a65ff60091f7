"""Build the manifest of a listing: index each shard alone, then join the results.

`index_shard` is a pure function of its arguments and the shard, so that it runs in a thread or in a
task, in any order. Caching a manifest is the business of `storage.index_cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rayingest.errors import ConfigError
from rayingest.formats import get_format
from rayingest.formats.protocol import Format, Shard, check_options
from rayingest.plan.order.manifest import Manifest, ShardBlocks
from rayingest.storage.index_cache import IndexCache
from rayingest.storage.redact import redact
from rayingest.storage.urls import Listing


def index_shard(format_: Format, shard: Shard, block_bytes: int) -> ShardBlocks:
    """Return the blocks of one shard. DataError for a damaged shard or one of another size."""
    check_options(format_, shard.options)
    with shard.storage.translate_errors(shard.url, "index"):
        return format_.index(shard, block_bytes)


def build_manifest(listing: Listing, blocks_per_shard: Sequence[ShardBlocks]) -> Manifest:
    """Return the manifest of all shards, in the order of the listing.

    ConfigError if no shard has a sample.
    """
    if len(blocks_per_shard) != len(listing):
        raise ValueError(f"{len(blocks_per_shard)} shards indexed of {len(listing)} listed")
    manifest = Manifest.join(
        listing.root, listing.paths, listing.sizes, listing.marks, blocks_per_shard
    )
    if not manifest.num_samples:
        raise ConfigError(
            f"there is no sample in any of the {len(listing)} shards in {redact(listing.root)}"
        )
    return manifest


@dataclass(frozen=True)
class IndexScan:
    """The manifest as a `Scan`: a part is a shard."""

    cache: IndexCache
    format: Format

    @classmethod
    def of(cls, cache: IndexCache) -> IndexScan:
        """Return the scan for this cache; ConfigError for an unknown format."""
        return cls(cache, get_format(cache.format_name))

    @property
    def name(self) -> str:
        return "index"

    @property
    def key(self) -> str:
        return self.cache.key

    @property
    def is_light(self) -> bool:
        return not self.format.opens_shards

    def load(self) -> Manifest | None:
        return self.cache.load()

    def save(self, value: Manifest) -> None:
        self.cache.save(value)

    def parts(self) -> list[Callable[[], ShardBlocks]]:
        cache, listing = self.cache, self.cache.listing
        shards = (
            Shard(cache.storage, listing.url(i), int(listing.sizes[i]), cache.strict, cache.options)
            for i in range(len(listing))
        )
        return [partial(index_shard, self.format, shard, cache.block_bytes) for shard in shards]

    def join(self, results: Sequence[ShardBlocks]) -> Manifest:
        return build_manifest(self.cache.listing, results)
